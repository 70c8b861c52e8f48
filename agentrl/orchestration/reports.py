"""What a person must be told about a step: nothing to train, tools never called."""

from collections.abc import Sequence

from agentrl.orchestration.bind import BoundEnv
from agentrl.rollout import Collected
from agentrl.types import CallErrorReason, Episode, Invalid

UNREADABLE = frozenset(str(reason) for reason in CallErrorReason)
"""Why a call never reached a tool; other errors are of tools that ran."""


def why_untrained(collected: Collected) -> list[str]:
    """One line per episode of a step that gave no gradient, saying why it gave none."""
    groups: dict[int, list[Episode]] = {}
    for episode in collected.episodes:
        groups.setdefault(episode.group, []).append(episode)
    lines = [f"{e.id}: {_why(e, groups[e.group])}" for e in collected.episodes]
    return lines + [f"{e.id}: invalid: {_reason(e)}" for e in collected.invalid]


def _why(episode: Episode, group: Sequence[Episode]) -> str:
    if not any(segment.num_trained for segment in episode.segments):
        return "the policy sampled no token"
    if len(group) == 1:
        return "it is the only scored episode of its group, so there is nothing to compare with"
    if len({member.reward for member in group}) == 1:
        return f"all {len(group)} episodes of its group have the reward {episode.reward:g}"
    return "its advantage is zero"


def _reason(episode: Episode) -> str:
    outcome = episode.outcome
    return f"{outcome.reason} ({outcome.blame})" if isinstance(outcome, Invalid) else "scored"


def unused_tools(collected: Collected, envs: Sequence[BoundEnv]) -> str | None:
    """A warning for each environment that has tools of which no episode of the step called one."""
    lines = [_unused(env, [e for e in collected.episodes if e.env == env.name]) for env in envs]
    return "\n".join(line for line in lines if line) or None


def _unused(env: BoundEnv, episodes: Sequence[Episode]) -> str:
    tools = [schema.name for schema in env.prototype.tool_schemas]
    turns = [turn for episode in episodes for turn in episode.turns]
    unreadable = sum(error in UNREADABLE for turn in turns for error in turn.call_errors)
    if not tools or not turns or sum(turn.num_calls for turn in turns) > unreadable:
        return ""
    tried = f"; {unreadable} calls could not be read" if unreadable else ""
    return (
        f"no episode of env {env.name} called a tool ({', '.join(tools)}) in this step{tried}: the "
        "policy does not know the tool-call format; try `agentrl sft` or another --tool-format"
    )
