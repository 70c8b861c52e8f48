"""What a set of episodes says in numbers."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from agentrl.rollout.call_faults import call_faults
from agentrl.rollout.collect import Collected
from agentrl.types import Episode, EpisodeStop, Score

SUCCESS = 1.0
"""An episode succeeds if its score is at least this, the top of a verifier's usual range."""


def succeeded(episode: Episode) -> bool:
    """True if the episode has the full score."""
    return isinstance(episode.outcome, Score) and episode.outcome.value >= SUCCESS - 1e-9


def episode_metrics(collected: Collected) -> dict[str, float]:
    """Rewards, success, lengths, calls, stop reasons and losses of one collection."""
    episodes = collected.episodes
    metrics = {"episodes": float(len(episodes)), "invalid": float(len(collected.invalid))}
    if not episodes:
        return metrics
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics |= {
        "reward": _mean([e.reward for e in episodes]),
        "reward_std": float(np.std([e.reward for e in episodes])),
        "success": _mean([float(succeeded(e)) for e in episodes]),
        "turns": _mean([float(len(e.turns)) for e in episodes]),
        "segments": _mean([float(len(e.segments)) for e in episodes]),
        "trained_tokens": float(sum(s.num_trained for e in episodes for s in e.segments)),
        "sampled_tokens": float(sum(turn.num_sampled for turn in turns)),
        "length": _mean([float(sum(t.num_sampled for t in e.turns)) for e in episodes]),
        "calls": float(sum(turn.num_calls for turn in turns)),
        "call_errors": float(sum(len(turn.call_errors) for turn in turns)),
        "cached_tokens": float(sum(turn.cached_tokens for turn in turns)),
        "environment_s": _mean([sum(t.environment_s for t in e.turns) for e in episodes]),
        "duplicates": _duplicate_share(episodes),
        "flat_groups": _flat_share(episodes),
    }
    faults = call_faults(episodes)
    metrics |= {f"call_errors/{kind}": float(faults[kind]) for kind in sorted(faults)}
    stops = Counter(episode.stop for episode in episodes)
    metrics |= {f"stop/{stop}": stops[stop] / len(episodes) for stop in EpisodeStop if stops[stop]}
    return metrics | _parts(episodes) | _by_env(episodes)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _parts(episodes: Sequence[Episode]) -> dict[str, float]:
    """The mean of each named score part over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        if isinstance(episode.outcome, Score):
            for name, value in episode.outcome.parts.items():
                values.setdefault(f"part/{name}", []).append(value)
    return {name: _mean(numbers) for name, numbers in values.items()}


def _by_env(episodes: Sequence[Episode]) -> dict[str, float]:
    """Reward and success of each environment, where there are several."""
    by_env: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_env.setdefault(episode.env, []).append(episode)
    metrics: dict[str, float] = {}
    if len(by_env) > 1:
        for name, own in by_env.items():
            metrics[f"reward/{name}"] = _mean([e.reward for e in own])
            metrics[f"success/{name}"] = _mean([float(succeeded(e)) for e in own])
    return metrics


def _groups(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    return groups


def _flat_share(episodes: Sequence[Episode]) -> float:
    """The share of groups whose rewards are all equal: nothing can be learnt from them."""
    groups = _groups(episodes)
    return sum(len({e.reward for e in g}) == 1 for g in groups.values()) / len(groups)


def _duplicate_share(episodes: Sequence[Episode]) -> float:
    """The share of episodes whose tokens equal those of an earlier member of their group."""
    copies = 0
    for group in _groups(episodes).values():
        copies += len(group) - len({tuple(s.ids_T.tobytes() for s in e.segments) for e in group})
    return copies / len(episodes)
