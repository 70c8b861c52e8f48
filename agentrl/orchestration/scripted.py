"""Evaluation of a scripted agent: the same loop and record, with an agent in the model's place."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from agentrl.config.nearest import nearest
from agentrl.config.references import load_reference
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EchoAgent, NullAgent, RandomAgent
from agentrl.errors import ConfigError
from agentrl.orchestration.env_mix import BoundEnv
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.sampling import SamplingParts, checked_codec, with_codec
from agentrl.orchestration.started import Started, nothing
from agentrl.types import Agent

_TOKENS: Final = 1 << 20
"""An agent's turns and episodes are as long as it likes."""


def scripted_parts(plan: Plan, model_folder: Path, name: str) -> tuple[Plan, SamplingParts]:
    """The parts for episodes of an agent, and the plan without budgets of tokens.

    Raises:
        ConfigError: There is no such agent, or there are several environments.
    """
    if len(plan.envs) != 1:
        raise ConfigError(f"--agent {name}: got {len(plan.envs)} environments, expected one")
    env, config = plan.envs[0], plan.config
    agent = make_agent(name, env, config.seed)
    budgets = {"max_new_tokens": _TOKENS, "max_context_tokens": _TOKENS}
    rollout = config.rollout.model_copy(update=budgets)
    plan = replace(plan, config=config.model_copy(update={"rollout": rollout}))
    codec = checked_codec(plan, model_folder)
    engine = ScriptedEngine(agent, codec.renderer(env.prototype.tool_schemas))
    return plan, with_codec(plan, codec, Started(engine=engine, begin=nothing))


def make_agent(name: str, env: BoundEnv, seed: int) -> Agent:
    """An agent by its name or reference.

    Raises:
        ConfigError: There is none.
    """
    if ":" in name:
        found = load_reference(name, "agent")
        agent: object = found() if isinstance(found, type) else found
        if not isinstance(agent, Agent):
            raise ConfigError(f"agent {name} has no method act(view); name one that has")
        return agent
    expert = env.expert
    known: dict[str, Agent] = {
        **({} if expert is None else {"oracle": expert}),
        "null": NullAgent(),
        "echo": EchoAgent(),
        "random": RandomAgent(seed, env.prototype.tool_schemas),
        **env.env_class.agents(),
    }
    if name not in known:
        raise ConfigError(f"agent {name} is unknown for env {env.name}, {nearest(name, known)}")
    return known[name]
