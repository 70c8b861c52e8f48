"""What one turn did to an episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.types import EpisodeStop, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What a call of a tool with side effects came to, to be had without calling it again."""

    text: str
    error: str | None = None
    """What the record calls it, if it failed."""
    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    finish: tuple[Any] | None = None
    """What it gave to `finish`, if it did."""
    stop: EpisodeStop | None = None
    """How it ended the episode, if it did."""


NO_ANSWERS: Mapping[str, ToolAnswer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The environment's answer to one turn of the policy."""

    messages: tuple[Message, ...] = ()
    """What the environment says: tool results in call order, or the next user message."""
    reward: float = 0.0
    """The sum of `self.reward(x)` in this turn, without the score."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same, by the names that `self.reward(x, name)` gave."""
    state_key: str | None = None
    """The world's state key at the beginning of the turn: the state that was acted in."""
    stop: EpisodeStop | None = None
    """None while the episode goes on."""
    num_calls: int = 0
    """Tool calls that the policy made, the failed ones included."""
    call_errors: tuple[str, ...] = ()
    """Reasons of calls that did not run, "tool_error" or "tool_timeout" for those that failed."""
    answers: Mapping[str, ToolAnswer | None] = field(default_factory=dict[str, ToolAnswer | None])
    """By call id, those of the tools with side effects that were called; None: it was cut off."""
