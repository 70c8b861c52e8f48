"""What a person must be told about a step: nothing to train, tools never called, a wrong gap."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from agentrl.config.nearest import nearest
from agentrl.orchestration.env_mix import BoundEnv
from agentrl.rollout import NEVER_RAN, Collected, call_faults
from agentrl.trainer.updates import GapAlarm
from agentrl.types import Episode, Invalid


def why_untrained(collected: Collected, rejected: Set[str] = frozenset()) -> list[str]:
    """One line per episode of a step that gave no gradient, saying why it gave none.

    `rejected` are the ids of the episodes of which a correction left nothing.
    """
    groups: dict[int, list[Episode]] = {}
    for episode in collected.scored:
        groups.setdefault(episode.group, []).append(episode)
    lines = [
        f"{e.id}: {_explain_why_untrained(e, groups[e.group], rejected)}" for e in collected.scored
    ]
    invalid = [(e.id, e.outcome) for e in collected.invalid if isinstance(e.outcome, Invalid)]
    lines += [f"{e.id}: it was stopped ({e.dropped})" for e in collected.stopped]
    return lines + [f"{name}: invalid: {why.reason} ({why.blame})" for name, why in invalid]


def _explain_why_untrained(episode: Episode, group: Sequence[Episode], rejected: Set[str]) -> str:
    if not any(segment.num_trained for segment in episode.segments):
        return "the policy sampled no token"
    if episode.dropped not in ("", "flat"):
        return _DROPPED.get(episode.dropped, f"rollout.admission dropped it: {episode.dropped}")
    if episode.id in rejected:
        return "trainer.correct rejected all of its tokens"
    # A flat group was dropped as a whole, after these had left it.
    kept = [e for e in group if e.dropped in ("", "flat") and e.id not in rejected]
    left = "" if len(kept) == len(group) else f" that are left of {len(group)}"
    if len(kept) == 1:
        return f"its group has no other episode left to compare its reward {episode.reward:g} with"
    if len({member.reward for member in kept}) == 1:
        return f"all {len(kept)} episodes{left} of its group have the reward {episode.reward:g}"
    return "its advantage is zero, or its tokens weigh nothing"


_DROPPED = {
    "cut": "a limit cut it, and rollout.mask_cut leaves such episodes out",
    "filter": "rollout.filter left it out",
    "late": "its group was given up, since it would have been trained on too late",
}


def worst_episodes(alarm: GapAlarm, collected: Collected, file: Path) -> list[str]:
    """One line per episode that an alarm names: which it is, where it is kept, what differs."""
    lines: list[str] = []
    for suspect in alarm.worst:
        episode = collected.episodes[suspect.episode]
        lines.append(
            f"{episode.id} (env {episode.env}, task {episode.task.id}, group {episode.group}, "
            f"member {episode.member}; row {suspect.episode} of {file}), {suspect}"
        )
    return lines


def stop_of_alarms(alarm: GapAlarm, collected: Collected, file: Path) -> str:
    """Why a run ends after its last alarm."""
    return (
        f"{alarm.reason}; that is alarm {alarm.number} of this run and trainer.max_gap_alarms "
        f"allows no more, so it stops, and none of these steps was trained on: engine and trainer "
        "do not compute the same distribution any more, so look at what these episodes have in "
        f"common, such as their length: {'; '.join(worst_episodes(alarm, collected, file))}"
    )


def unused_tools(collected: Collected, envs: Sequence[BoundEnv]) -> str | None:
    """A warning for each environment that has tools of which no episode of the step reached one."""
    lines = [
        _describe_unused_tools(env, [e for e in collected.scored if e.env == env.name])
        for env in envs
    ]
    return "\n".join(line for line in lines if line) or None


def _describe_unused_tools(env: BoundEnv, episodes: Sequence[Episode]) -> str:
    tools = [schema.name for schema in env.prototype.tool_schemas]
    turns = [turn for episode in episodes for turn in episode.turns]
    faults = {kind: n for kind, n in call_faults(episodes).items() if kind in NEVER_RAN}
    tried = sum(faults.values())
    if not tools or not turns or sum(turn.num_calls for turn in turns) > tried:
        return ""
    names = f"({', '.join(tools)}) in this step"
    if not tried:
        return f"no episode of env {env.name} called a tool {names}: {_NO_FORMAT}"
    told = _describe_tool_call_faults(faults, _describe_unknown_tool_names(episodes, tools))
    return f"no call of env {env.name} reached a tool {names}, of {tried}: {told}"


def _describe_tool_call_faults(faults: Mapping[str, int], unknown: str) -> str:
    """How many calls failed in which way, and what to do about the most frequent one."""
    kinds = sorted(faults, key=lambda kind: (-faults[kind], kind))
    texts = {**_FAULTS, "unknown_tool": _FAULTS["unknown_tool"] + unknown}
    told = ", ".join(f"{faults[kind]} {texts[kind]}" for kind in kinds)
    unreadable = 2 * faults.get("unreadable", 0) > sum(faults.values())
    return f"{told}; {_NO_FORMAT if unreadable else _HINTS[kinds[0]]}"


def _describe_unknown_tool_names(episodes: Sequence[Episode], tools: Sequence[str]) -> str:
    """The names that were called most and that no tool has, each with the nearest that is one."""
    names = Counter(
        message.name
        for episode in episodes
        for message in episode.messages
        if message.role == "tool" and message.name and message.name not in tools
    )
    shown = [f"{name[:60]!r}, {nearest(name[:60], tools)}" for name, _ in names.most_common(3)]
    return f" ({'; '.join(shown)})" if shown else ""


_NO_FORMAT = (
    "the policy does not know the tool-call format; try `agentrl sft` or another --tool-format"
)
_FAULTS = {
    "unknown_tool": "named a tool that does not exist",
    "bad_arguments": "had arguments that do not fit the tool's schema",
    "too_many": "were beyond the limit of calls in one turn",
    "unreadable": "could not be read",
    "cut_off": "were cut off at the limit of tokens",
}
_HINTS = {
    "unknown_tool": "the calls are well-formed, so name the tools in the task's prompt",
    "bad_arguments": "the calls are well-formed, so describe the arguments in the tool's docstring",
    "too_many": "say in the prompt how many calls a turn may have",
    "unreadable": "look at the calls in the episodes' messages",
    "cut_off": "raise rollout.max_new_tokens",
}
