"""What a set of episodes says in numbers, and why calls of tools failed."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from agentrl.rollout.collected import Collected
from agentrl.types import CUT_OFF, CallErrorReason, Episode, EpisodeStop, Score
from agentrl.types.batch import are_equal

_READ = frozenset(
    {CallErrorReason.UNKNOWN_TOOL, CallErrorReason.BAD_ARGUMENTS, CallErrorReason.TOO_MANY}
)
NEVER_RAN = frozenset({*map(str, _READ), "unreadable", CUT_OFF})
"""Kinds of calls that reached no tool; others are of tools that ran."""
_LIMITS = frozenset(
    {EpisodeStop.TURN_TOKENS, EpisodeStop.CONTEXT_TOKENS, EpisodeStop.EPISODE_TOKENS}
)
_ALIKE = 1e-9
"""What a sum of weighted parts may miss a number by."""


def call_faults(episodes: Sequence[Episode]) -> Counter[str]:
    """Failed calls by kind.

    A call is "cut_off" where its turn ended at the limit of tokens, in it or behind it, and
    "unreadable" where it was written to its end and not in the format; other kinds are the reasons
    of the turns' records.
    """
    return Counter(
        _classify_call_error(error, last=turn is episode.turns[-1], stop=episode.stop)
        for episode in episodes
        for turn in episode.turns
        for error in turn.call_errors
    )


def _classify_call_error(error: str, *, last: bool, stop: EpisodeStop) -> str:
    if error not in set(CallErrorReason) - _READ:
        return error
    cut = last and error == CallErrorReason.UNCLOSED and stop in _LIMITS
    return CUT_OFF if cut else "unreadable"


def succeeded(episode: Episode, success_at: Mapping[str, float]) -> bool | None:
    """True if the score is at least what `success_at` has for the environment.

    Where it has nothing, 1 is a success and 0 is none; None for any other score.
    """
    value = episode.outcome.value if isinstance(episode.outcome, Score) else 0.0
    least = success_at.get(episode.env)
    if least is not None:
        return value >= least - _ALIKE
    return bool(round(value)) if min(abs(value), abs(value - 1)) <= _ALIKE else None


def successes(episodes: Sequence[Episode], success_at: Mapping[str, float]) -> list[bool] | None:
    """Whether each episode succeeded; None where that is not said of all."""
    found = [succeeded(episode, success_at) for episode in episodes]
    return None if None in found else [bool(one) for one in found]


def episode_metrics(collected: Collected) -> dict[str, float]:
    """Rewards, success, lengths, calls, stop reasons and losses of one collection.

    Of all that were scored, as they were scored: also of those that nobody trains on.
    """
    episodes, trained = collected.scored, collected.episodes
    metrics = {"episodes": float(len(episodes)), "invalid": float(len(collected.invalid))}
    if collected.too_long:
        metrics["too_long"] = float(len(collected.too_long))
    if collected.no_text:
        metrics["no_text"] = float(len(collected.no_text))
    if not episodes:
        return metrics
    if collected.greedy:
        metrics["reward_greedy"] = _average_or_zero([e.reward for e in collected.greedy])
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics |= {
        "reward": _average_or_zero([e.reward for e in episodes]),
        "reward_std": float(np.std([e.reward for e in episodes])),
        "turns": _average_or_zero([float(len(e.turns)) for e in episodes]),
        "segments": _average_or_zero([float(len(e.segments)) for e in episodes]),
        "trained_tokens": float(sum(s.num_trained for e in trained for s in e.segments)),
        "sampled_tokens": float(sum(turn.num_sampled for turn in turns)),
        "length": _average_or_zero([float(sum(t.num_sampled for t in e.turns)) for e in episodes]),
        "calls": float(sum(turn.num_calls for turn in turns)),
        "call_errors": float(sum(len(turn.call_errors) for turn in turns)),
        "cached_tokens": float(sum(turn.cached_tokens for turn in turns)),
        "environment_s": _average_or_zero(
            [sum(t.environment_s for t in e.turns) for e in episodes]
        ),
        "duplicates": _measure_share_of_duplicates(episodes),
        "flat_groups": share_of_flat_groups(episodes),
    }
    faults = call_faults(episodes)
    metrics |= {f"call_errors/{kind}": float(faults[kind]) for kind in sorted(faults)}
    stops = Counter(episode.stop for episode in episodes)
    metrics |= {f"stop/{stop}": stops[stop] / len(episodes) for stop in EpisodeStop if stops[stop]}
    success = _measure_success_share("success", episodes, collected)
    return metrics | success | _average_score_parts(episodes) | _measure_each_environment(collected)


def _average_or_zero(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _average_score_parts(episodes: Sequence[Episode]) -> dict[str, float]:
    """The mean of each named score part over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        if isinstance(episode.outcome, Score):
            for name, value in episode.outcome.parts.items():
                values.setdefault(f"part/{name}", []).append(value)
    return {name: _average_or_zero(numbers) for name, numbers in values.items()}


def _measure_success_share(
    name: str, episodes: Sequence[Episode], collected: Collected
) -> dict[str, float]:
    """The share of successes under a name; nothing where no success is defined."""
    found = successes(episodes, collected.success_at)
    return {} if found is None else {name: _average_or_zero([float(one) for one in found])}


def _measure_each_environment(collected: Collected) -> dict[str, float]:
    """Reward and success of each environment, where there are several."""
    by_env: dict[str, list[Episode]] = {}
    for episode in collected.scored:
        by_env.setdefault(episode.env, []).append(episode)
    metrics: dict[str, float] = {}
    if len(by_env) > 1:
        for name, own in by_env.items():
            metrics[f"reward/{name}"] = _average_or_zero([e.reward for e in own])
            metrics |= _measure_success_share(f"success/{name}", own, collected)
    return metrics


def _collect_episodes_by_group(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    return groups


def share_of_flat_groups(episodes: Sequence[Episode]) -> float:
    """The share of groups whose rewards are all equal: nothing can be learnt by comparing them."""
    groups = _collect_episodes_by_group(episodes).values()
    rewards = [[e.reward for e in group] for group in groups]
    return _average_or_zero([float(are_equal(min(r), max(r))) for r in rewards])


def _measure_share_of_duplicates(episodes: Sequence[Episode]) -> float:
    """The share of episodes whose tokens equal those of an earlier member of their group."""
    copies = 0
    for group in _collect_episodes_by_group(episodes).values():
        copies += len(group) - len({tuple(s.ids_T.tobytes() for s in e.segments) for e in group})
    return copies / len(episodes)
