"""From an environment and a task to an episode that can start, here or in a process of its own."""

from typing import TYPE_CHECKING

from agentrl.envs.declaration import Declaration
from agentrl.envs.hooks import World
from agentrl.envs.process import EnvSpec
from agentrl.envs.remote import RemoteLimits, RemotePlay
from agentrl.envs.turn_rules import Play, Rules
from agentrl.tools import TextTokenizer
from agentrl.types import Message, Task

if TYPE_CHECKING:
    from agentrl.envs.toolenv import ToolEnv

_TRAVELLING = ("system", "max_turns", "warn_turns", "tool_timeout_s", "hook_timeout_s", "grace_s")
"""Attributes that an instance may have changed."""


def new_play(
    env: "ToolEnv",
    declared: Declaration,
    tokenizer: TextTokenizer | None,
    task: Task,
    messages: tuple[Message, ...],
) -> Play | RemotePlay:
    """The episode; its `start` is still to come."""
    if env.isolation == "process":
        attributes = {name: getattr(env, name) for name in _TRAVELLING}
        birth = EnvSpec(env_class=type(env), config=env.config, attributes=attributes)
        limits = _remote_limits(env, declared)
        return RemotePlay(birth, env.services.env_pool, limits, tokenizer, task, messages)
    world = World(
        type(env).__name__,
        env.services.census,
        hook_timeout_s=env.hook_timeout_s,
        grace_s=env.grace_s,
    )
    return Play(_rules(env, declared, tokenizer), world, task, messages)


def _rules(env: "ToolEnv", declared: Declaration, tokenizer: TextTokenizer | None) -> Rules:
    hooks = declared.hooks
    return Rules(
        owner=env,
        tools=declared.tools,
        setup=env.setup if "setup" in hooks else None,
        teardown=env.teardown if "teardown" in hooks else None,
        reply=env.reply if "reply" in hooks else None,
        state_key=env.state_key if "state_key" in hooks else None,
        score=env.score,
        max_turns=env.max_turns,
        tool_timeout_s=env.tool_timeout_s,
        max_tool_tokens=env.max_tool_tokens,
        warn_turns=env.warn_turns,
        tokenizer=tokenizer,
        pool=lambda: env.services.tool_pool,
    )


def _remote_limits(env: "ToolEnv", declared: Declaration) -> RemoteLimits:
    timeouts = (spec.timeout_s or env.tool_timeout_s for spec in declared.tools.values())
    num_hooks = sum(hook in declared.hooks for hook in ("reply", "state_key"))
    return RemoteLimits(
        hook_s=env.hook_timeout_s,
        turn_hooks_s=num_hooks * env.hook_timeout_s,
        tool_s=max(timeouts, default=0.0),
        grace_s=env.grace_s,
        max_tool_tokens=env.max_tool_tokens,
    )
