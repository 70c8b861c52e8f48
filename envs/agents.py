"""Scripted agents: what plays the policy's part in checks, tests and model-free evaluation."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from agentrl.types import Agent, AssistantTurn, EpisodeView, Json, ToolCall, ToolSchema


@dataclass(frozen=True, slots=True)
class NullAgent:
    """Says nothing."""

    def act(self, view: EpisodeView) -> AssistantTurn:
        """An empty turn."""
        return AssistantTurn()


@dataclass(frozen=True, slots=True)
class EchoAgent:
    """Repeats what it was told last."""

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The last message's text."""
        return AssistantTurn(text=view.messages[-1].content)


@dataclass(frozen=True, slots=True)
class ScriptedAgent:
    """Plays given turns in order, then says nothing."""

    turns: Sequence[AssistantTurn]

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The turn whose number is that of the assistant messages so far."""
        played = sum(message.role == "assistant" for message in view.messages)
        return self.turns[played] if played < len(self.turns) else AssistantTurn()


class MixtureAgent:
    """Plays each episode as one of several agents, drawn by weight.

    The name of the drawn one is the text of its first turn, so that an episode shows who played it.
    """

    def __init__(self, agents: Mapping[str, tuple[Agent, float]], *, seed: int = 0) -> None:
        """Make it.

        Args:
            agents: the agents by name, each with its weight.
            seed: of the draws.
        """
        self._agents = {name: agent for name, (agent, _) in agents.items()}
        weights = np.array([weight for _, weight in agents.values()])
        self._shares = weights / weights.sum()
        self._rng = np.random.default_rng(seed)

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The turn of the episode's agent."""
        own = [message.content for message in view.messages if message.role == "assistant"]
        name = own[0] if own else str(self._rng.choice([*self._agents], p=self._shares))
        turn = self._agents[name].act(view)
        return turn if own else replace(turn, text=name)


@dataclass(frozen=True, slots=True)
class RandomAgent:
    """Calls tools with random arguments of the right types, or says a random number.

    What it does follows from its seed and the conversation.
    """

    seed: int = 0
    tools: Sequence[ToolSchema] = ()

    def act(self, view: EpisodeView) -> AssistantTurn:
        """A call three times out of four, where there are tools."""
        content = repr((self.seed, view.messages))
        digest = hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        if not self.tools or rng.random() < 0.25:
            return AssistantTurn(text=str(rng.integers(1000)))
        tool = self.tools[int(rng.integers(len(self.tools)))]
        properties = cast("Mapping[str, Mapping[str, Any]]", tool.parameters["properties"])
        arguments = {name: _draw_json(schema, rng) for name, schema in properties.items()}
        return call_tool(tool.name, **arguments)


def call_tool(name: str, /, **arguments: Json) -> AssistantTurn:
    """The turn that calls one tool and says nothing."""
    return AssistantTurn(calls=(ToolCall(name=name, arguments=arguments, id="call_0"),))


def _draw_json(schema: Mapping[str, Any], rng: np.random.Generator) -> Json:
    """A value of the schema's type; a short one."""
    if "anyOf" in schema:
        return _draw_json(schema["anyOf"][int(rng.integers(len(schema["anyOf"])))], rng)
    if "enum" in schema:
        return cast("Json", schema["enum"][int(rng.integers(len(schema["enum"])))])
    match schema.get("type"):
        case "integer":
            return int(rng.integers(-100, 100))
        case "number":
            return float(rng.normal())
        case "boolean":
            return bool(rng.integers(2))
        case "string":
            return str(schema["const"]) if "const" in schema else str(rng.integers(1000))
        case "array":
            return [_draw_json(schema.get("items", {}), rng) for _ in range(int(rng.integers(3)))]
        case "object":
            return {}
        case _:
            return None
