"""What of a step is trained on, and with which rewards: decided for each group as it ends.

    scored ──▶ without those that ──▶ the filter, by rank ──▶ an admission policy (`admission.py`)
                 a limit cut            of the rewards

Rewards are those that are trained on: they fall near a limit of tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from agentrl.rollout.collected import Collected, PlayedGroup
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.metrics import share_of_flat_groups, successes
from agentrl.types import Episode, EpisodeStop
from agentrl.types.episode import derive_seed

_USED_UP = frozenset(
    {EpisodeStop.TURN_TOKENS, EpisodeStop.CONTEXT_TOKENS, EpisodeStop.EPISODE_TOKENS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rules of a run; what is left to chance, its seed and the group's number decide."""

    config: RolloutConfig
    limits: EpisodeLimits
    seed: int

    def shape_reward(self, episode: Episode) -> Episode:
        """The episode with the reward that is trained on."""
        config = self.config
        return shape_overlong(episode, self.limits, config.overlong_buffer, config.overlong_penalty)

    def choose(self, group: PlayedGroup) -> None:
        """Move what is not trained on to the group's dropped episodes."""
        if self.config.mask_cut:
            drop(group, [e for e in group.episodes if e.stop.truncated], "cut")
        if self.config.filter != "none":
            rewards = [self.shape_reward(episode).reward for episode in group.episodes]
            seed = derive_seed(self.seed, "filter", group.job.key.group)
            kept = filter_by_rank(rewards, self.config.filter, self.config.filter_share, seed)
            others = [e for i, e in enumerate(group.episodes) if i not in kept]
            drop(group, others, "filter")

    def count(self, collected: Collected) -> dict[str, float]:
        """Metrics of the rules that are set: what was drawn, kept, dropped and shaped."""
        config, metrics = self.config, dict[str, float]()
        if config.overlong_buffer:
            shaped = [self.shape_reward(episode) for episode in collected.scored]
            fell = sum(new is not old for new, old in zip(shaped, collected.scored, strict=True))
            metrics["overlong"] = fell / max(1, len(shaped))
            metrics["flat_groups"] = share_of_flat_groups(shaped)
        lost = [*collected.dropped, *collected.stopped]
        dropped = Counter(episode.dropped for episode in lost)
        is_set = {"flat": config.refill > 1, "cut": config.mask_cut}
        is_set["filter"] = config.filter != "none"
        rules = [why for why, is_one in is_set.items() if is_one]
        for why in dict.fromkeys((*rules, *sorted(dropped))):
            metrics[f"dropped/{why}"] = float(dropped[why])
        if lost or rules:
            metrics |= measure_lengths("length/kept", collected.episodes)
            metrics |= measure_lengths("length/dropped", lost)
        return metrics | (count_groups(collected) if config.refill > 1 else {})


def count_groups(collected: Collected) -> dict[str, float]:
    """How many groups were drawn, how many kept, and which of them taught nothing, by reward."""
    flat: dict[int, list[Episode]] = {}
    for episode in collected.dropped:
        if episode.dropped == "flat":
            flat.setdefault(episode.group, []).append(episode)
    found = [successes(group, collected.success_at) or () for group in flat.values()]
    counts = {
        "drawn": collected.num_groups,
        "kept": len({episode.group for episode in collected.episodes}),
        "solved": sum(all(group) for group in found if group),
        "failed": sum(not any(group) for group in found if group),
    }
    counts["flat"] = len(flat) - counts["solved"] - counts["failed"]
    return {f"groups/{name}": float(number) for name, number in counts.items()}


def measure_lengths(name: str, episodes: Sequence[Episode]) -> dict[str, float]:
    """Sampled tokens of an episode, in the mean; of each environment too where there are several.

    Nothing has no length, which 0 would be.
    """
    lengths: dict[str, list[int]] = {}
    for episode in episodes:
        sampled = sum(turn.num_sampled for turn in episode.turns)
        lengths.setdefault(episode.env, []).append(sampled)
    by_env = {f"{name}/{env}": own for env, own in lengths.items() if len(lengths) > 1}
    every = [length for own in lengths.values() for length in own]
    named = {name: every} if every else {}
    return {key: sum(own) / len(own) for key, own in (named | by_env).items()}


def drop(group: PlayedGroup, episodes: Sequence[Episode], why: str) -> None:
    """Move episodes of a group to those that nobody trains on."""
    names = {episode.id for episode in episodes}
    group.dropped += [replace(episode, dropped=why) for episode in episodes]
    group.episodes[:] = [e for e in group.episodes if e.id not in names]


def shape_overlong(
    episode: Episode, limits: EpisodeLimits, buffer: float, penalty: float = 1.0
) -> Episode:
    """The episode, with less reward the nearer it came to a limit of tokens.

    DAPO's soft punishment (arXiv:2503.14476, section 3.4). With u tokens used of a limit L whose
    last B are the buffer, it loses penalty * (u - (L - B)) / B, at least nothing and at most the
    penalty. L = 100 and a buffer of 0.2, so B = 20: 80 tokens lose nothing, 90 half of it, 100 all
    of it, and so does an episode that a limit of tokens cut.

    A turn's own tokens count against the limit of a turn, those of the last segment against the
    context's, those of all segments against the episode's; the worst of them counts, once, in the
    turn that came so near: the last one for all limits but a turn's own.
    """
    if not buffer:
        return episode
    last = len(episode.turns) - 1
    tokens = [segment.num_tokens for segment in episode.segments]
    used = [(turn.num_sampled, limits.max_new_tokens, i) for i, turn in enumerate(episode.turns)]
    used.append((sum(tokens[-1:]), limits.max_context_tokens, last))
    if limits.max_episode_tokens is not None:
        used.append((sum(tokens), limits.max_episode_tokens, last))
    shares: list[tuple[float, int]] = []
    for number, limit, turn in used:
        width = max(1, round(buffer * limit))
        shares.append((min(1.0, (number - limit + width) / width), turn))
    share, turn = (1.0, last) if episode.stop in _USED_UP else max(shares)
    if share <= 0:
        return episode
    record = episode.turns[turn]
    parts = record.parts
    if any(t.parts for t in episode.turns):  # for an estimator that compares parts it is one
        parts = {**parts, "overlong": parts.get("overlong", 0.0) - penalty * share}
    shaped = replace(record, reward=record.reward - penalty * share, parts=parts)
    return replace(episode, turns=(*episode.turns[:turn], shaped, *episode.turns[turn + 1 :]))


def filter_by_rank(
    rewards: Sequence[float], kind: Literal["best_worst", "best_random"], share: float, seed: int
) -> list[int]:
    """Which members of a group are trained on, by rank as in PF-PPO: their places, in order.

    That paper (arXiv:2409.06957) filters by the rank of the reward; the shares are those of here.

    Half of those that are kept, rounded up, have the highest rewards; the others have the lowest,
    or are any of the rest. Of eight with a share of 0.5 the two best and the two worst are kept. At
    least two are; equal rewards rank by their places.
    """
    ranked = sorted(range(len(rewards)), key=lambda i: -rewards[i])
    num = min(max(2, share_of(len(ranked), share)), len(ranked))
    best, rest = ranked[: (num + 1) // 2], ranked[(num + 1) // 2 :]
    if kind == "best_random":
        rest = np.random.default_rng(seed).permutation(np.array(rest, dtype=np.int64)).tolist()
    return sorted(best + rest[len(rest) - num // 2 :])


def share_of(members: int, share: float) -> int:
    """A share of so many members, to the nearest number."""
    return int(share * members + 0.5)
