"""What a person must be told about a step: nothing to train, tools never called."""

from collections.abc import Sequence

from agentrl.rollout import Collected
from agentrl.types import Episode, Invalid


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


def unused_tools(collected: Collected, tools: Sequence[str]) -> str | None:
    """A warning if the environment has tools and no episode of the step called one."""
    turns = [turn for episode in collected.episodes for turn in episode.turns]
    if not tools or not turns or any(turn.num_calls for turn in turns):
        return None
    errors = sum(len(turn.call_errors) for turn in turns)
    tried = f"; {errors} calls could not be read" if errors else ""
    return (
        f"no episode of this step called a tool ({', '.join(tools)}){tried}: the policy does not "
        "know the tool-call format, try `agentrl sft` first or another --tool_format"
    )
