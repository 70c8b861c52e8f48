"""Episodes into the flat arrays of one optimizer step."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agentrl.types import Batch, Episode, Segment

S = TypeVar("S", bound=np.generic)


def make_batch(
    episodes: Sequence[Episode], *, temperature: float, greedy: Sequence[Episode] | None = None
) -> Batch:
    """One row per segment, episodes in order; every episode must have been scored.

    Rewards, and with them baselines and advantages, are held once per episode, however many
    segments it has; what each token weighs a normalisation says. `greedy` are the groups' greedy
    members, as far as they have a score, or None where nobody asked for them: of them the rewards
    alone are taken. Raises ValueError for an episode without a score.
    """
    for episode in episodes:
        if not episode.valid:
            raise ValueError(f"episode {episode.id} has no score; leave it out of the batch")
    group_E = np.unique([e.group for e in episodes], return_inverse=True)[1]
    rows = [(e, segment) for e, episode in enumerate(episodes) for segment in episode.segments]
    segments = [segment for _, segment in rows]
    keys_U = tuple(turn.state_key for episode in episodes for turn in episode.turns)
    rewards = {episode.group: episode.reward for episode in greedy or ()}
    greedy_rewards = [rewards.get(e.group, np.nan) for e in episodes]
    return Batch(
        ids_N=_concatenate_segment_arrays(segments, lambda s: s.ids_T, np.int32),
        mask_N=_concatenate_segment_arrays(segments, lambda s: s.mask_T, np.bool_),
        logprobs_N=_concatenate_segment_arrays(segments, lambda s: s.logprobs_T, np.float32),
        sources_N=_concatenate_segment_arrays(segments, lambda s: s.sources_T, np.int8),
        turns_N=_concatenate_segment_arrays(segments, lambda s: s.turns_T, np.int16),
        versions_N=_concatenate_segment_arrays(segments, lambda s: s.versions_T, np.int32),
        marks_N=_concatenate_segment_arrays(segments, lambda s: s.marks_T, np.uint32),
        offsets_R1=_accumulate_offsets([s.num_tokens for s in segments]),
        episode_R=np.array([e for e, _ in rows], dtype=np.int32),
        digests_R=tuple(s.digest for s in segments),
        appends_A=_concatenate_segment_arrays(segments, lambda s: s.appends_A, np.int32),
        append_offsets_R1=_accumulate_offsets([len(s.appends_A) for s in segments]),
        episode_ids=tuple(episode.id for episode in episodes),
        group_E=group_E.astype(np.int32),
        rewards_E=np.array([episode.reward for episode in episodes], dtype=np.float64),
        turn_rewards_U=np.array([t.reward for e in episodes for t in e.turns], dtype=np.float64),
        turn_offsets_E1=_accumulate_offsets([len(episode.turns) for episode in episodes]),
        keys_U=keys_U if any(key is not None for key in keys_U) else None,
        parts_E=_sum_score_parts_by_episode(episodes),
        greedy_E=None if greedy is None else np.array(greedy_rewards, dtype=np.float64),
        temperature=temperature,
        channels=_concatenate_side_channels(segments),
    )


def _sum_score_parts_by_episode(episodes: Sequence[Episode]) -> dict[str, NDArray[np.float64]]:
    """The parts of each episode's score, turns and all."""
    names = sorted({name for e in episodes for turn in e.turns for name in turn.parts})
    return {
        name: np.array([sum(t.parts.get(name, 0.0) for t in e.turns) for e in episodes], np.float64)
        for name in names
    }


def _concatenate_segment_arrays(
    segments: Sequence[Segment], part: Callable[[Segment], NDArray[S]], dtype: type[S]
) -> NDArray[S]:
    arrays = [part(segment) for segment in segments]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def _accumulate_offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _concatenate_side_channels(segments: Sequence[Segment]) -> dict[str, NDArray[np.generic]]:
    """Side channels that the segments have; zero in segments in which nothing was sampled."""
    empty = {name: a[:0] for segment in segments for name, a in segment.channels.items()}
    return {
        name: np.concatenate(
            [
                s.channels.get(name, np.zeros((s.num_tokens, *like.shape[1:]), like.dtype))
                for s in segments
            ]
        )
        for name, like in sorted(empty.items())
    }
