"""What of a group is trained on: rewards near a limit, episodes that were cut, the filter."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout import (
    Collected,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    PlayedGroup,
    RolloutConfig,
    make_batch,
)
from agentrl.rollout.selection import Selection, filter_by_rank, shape_overlong
from agentrl.types import Episode, EpisodeStop, Score, Segment, Task, TurnRecord

LIMITS = EpisodeLimits(
    max_new_tokens=100,
    max_context_tokens=400,
    max_episode_tokens=1000,
    wall_s=None,
    setup_s=1.0,
)
TURN_TOKENS, ANSWERED = EpisodeStop.TURN_TOKENS, EpisodeStop.ANSWERED


def segment(tokens: int) -> Segment:
    return Segment(
        ids_T=np.zeros(tokens, np.int32),
        mask_T=np.arange(tokens) > 0,
        logprobs_T=np.zeros(tokens, np.float32),
        sources_T=np.ones(tokens, np.int8),
        turns_T=np.zeros(tokens, np.int16),
        versions_T=np.zeros(tokens, np.int32),
        channels={},
        appends_A=np.zeros(0, np.int32),
        marks_T=np.zeros(tokens, np.uint32),
        digest=b"",
    )


def episode(
    *turns: int,
    segments: Sequence[int] = (50,),
    stop: EpisodeStop = ANSWERED,
    reward: float = 1.0,
    member: int = 0,
    parts: dict[str, float] | None = None,
) -> Episode:
    """One with turns of so many sampled tokens, in segments of so many tokens."""
    records = [TurnRecord(num_sampled=number) for number in turns]
    records[-1] = TurnRecord(num_sampled=turns[-1], reward=reward, parts=parts or {})
    return Episode(
        id=f"e{member}",
        env="env",
        task=Task(prompt="x", id="x"),
        split="train",
        group=7,
        member=member,
        attempt=0,
        seed=0,
        segments=tuple(map(segment, segments)),
        messages=(),
        turns=tuple(records),
        stop=stop,
        outcome=Score(value=reward),
    )


@pytest.mark.parametrize(
    ("played", "lost"),
    [
        (episode(79), 0.0),
        (episode(80), 0.0),
        (episode(90), 0.5),
        (episode(99), 0.95),
        (episode(100), 1.0),
        (episode(100, stop=TURN_TOKENS), 1.0),
        (episode(20, stop=TURN_TOKENS), 1.0),  # the context had room for 20 only
        (episode(20, stop=EpisodeStop.CONTEXT_TOKENS), 1.0),
        (episode(20, stop=EpisodeStop.MAX_TURNS), 0.0),
        (episode(20, segments=(380,)), 0.75),
        (episode(20, segments=(400, 30)), 0.0),  # a new segment had room again
        (episode(20, segments=(400, 400, 100)), 0.5),
        (episode(90, 20, segments=(340,)), 0.5),
    ],
)
def test_the_reward_falls_in_the_last_fifth_of_a_limit(played: Episode, lost: float) -> None:
    shaped = shape_overlong(played, LIMITS, 0.2)
    assert shaped.reward == pytest.approx(1.0 - lost)
    assert (shaped is played) is (lost == 0)
    assert shape_overlong(played, LIMITS, 0.2, 0.5).reward == pytest.approx(1.0 - lost / 2)
    assert shape_overlong(played, LIMITS, 0.0) is played


def test_the_turn_that_came_near_pays_and_the_batch_agrees() -> None:
    played = [episode(90, 20), episode(20, 100, member=1, parts={"right": 1.0})]
    shaped = [shape_overlong(e, LIMITS, 0.2) for e in played]
    batch = make_batch(shaped, temperature=1.0)
    assert batch.rewards_E.tolist() == [0.5, 0.0]
    assert batch.turn_rewards_U is not None
    assert batch.turn_rewards_U.tolist() == [-0.5, 1.0, 0.0, 0.0]
    assert {name: part.tolist() for name, part in batch.parts_E.items()} == {
        "right": [0.0, 1.0],
        "overlong": [0.0, -1.0],
    }
    assert [e.reward for e in played] == [1.0, 1.0]  # what is written stays as it was scored


@settings(max_examples=50)
@given(st.integers(1, 100), st.integers(1, 100), st.sampled_from([0.01, 0.2, 1 / 3, 1.0]))
def test_a_longer_turn_never_gets_more(one: int, other: int, buffer: float) -> None:
    short, long = (shape_overlong(episode(n), LIMITS, buffer).reward for n in sorted((one, other)))
    assert 0.0 <= long <= short <= 1.0
    tokens = max(1, round(100 * buffer))
    assert short == 1.0 or min(one, other) > 100 - tokens


def ranks(kept: Sequence[int], rewards: Sequence[float]) -> list[float]:
    return sorted(rewards[i] for i in kept)


def test_the_filter_keeps_the_best_and_the_worst() -> None:
    rewards = [0.3, 0.9, 0.1, 0.5, 0.8, 0.2, 0.7, 0.4]
    assert ranks(filter_by_rank(rewards, "best_worst", 0.5, 0), rewards) == [0.1, 0.2, 0.8, 0.9]
    assert ranks(filter_by_rank(rewards, "best_worst", 0.4, 0), rewards) == [0.1, 0.8, 0.9]
    assert filter_by_rank(rewards, "best_worst", 1.0, 0) == [*range(8)]
    assert filter_by_rank(rewards, "best_worst", 0.01, 0) == [1, 2]
    assert filter_by_rank([0.5], "best_worst", 0.5, 0) == [0]
    assert filter_by_rank([], "best_random", 0.5, 0) == []


def test_the_others_are_drawn_at_random_by_the_seed_alone() -> None:
    rewards = [float(i) for i in range(8)]
    drawn = [filter_by_rank(rewards, "best_random", 0.5, seed) for seed in range(300)]
    assert drawn == [filter_by_rank(rewards, "best_random", 0.5, seed) for seed in range(300)]
    assert all({6, 7} < {*kept} and len(kept) == 4 for kept in drawn)
    others = [sum(i in kept for kept in drawn) for i in range(6)]
    assert min(others) > 60  # 100 each


def group(*episodes: Episode) -> PlayedGroup:
    job = GroupJob(
        key=EpisodeKey.first(run=0, step=1, place=0),
        env="env",
        make_env=lambda: pytest.fail("nothing is played"),
        task=Task(prompt="x", id="x"),
        split="train",
    )
    return PlayedGroup(job, episodes=[*episodes])


def selection(**keys: object) -> Selection:
    return Selection(config=RolloutConfig.model_validate(keys), limits=LIMITS, seed=3)


def test_by_default_all_are_trained_on() -> None:
    played = group(episode(100, stop=TURN_TOKENS), episode(5, reward=0.0, member=1))
    chosen = selection()
    chosen.choose(played)
    assert len(played.episodes) == 2
    assert not played.dropped
    assert chosen.count(Collected([*played.episodes])) == {}


def test_what_a_limit_cut_is_left_out_and_then_comes_the_filter() -> None:
    """The filter ranks the rewards that are trained on: the long one is the worst of the rest."""
    played = group(
        episode(100, stop=TURN_TOKENS, reward=5.0, member=0),
        episode(9, stop=EpisodeStop.MAX_TURNS, member=1),
        episode(99, reward=0.9, member=2),
        episode(9, reward=0.2, member=3),
        episode(9, reward=0.5, member=4),
        episode(9, reward=1.0, member=5),
    )
    chosen = selection(mask_cut=True, filter="best_worst", overlong_buffer=0.2)
    chosen.choose(played)
    assert [e.member for e in played.episodes] == [2, 5]
    assert [(e.member, e.dropped) for e in played.dropped] == [
        *((0, "cut"), (1, "cut"), (3, "filter"), (4, "filter"))
    ]
    collected = Collected()
    collected.add(played)
    assert chosen.count(collected) == {
        "overlong": 2 / 6,
        "flat_groups": 0.0,
        "dropped/cut": 2.0,
        "dropped/filter": 2.0,
        "length/kept": 54.0,
        "length/dropped": 127 / 4,
    }


def test_what_there_is_none_of_has_no_length() -> None:
    rules = selection(mask_cut=True)
    assert rules.count(Collected([episode(9)])) == {"dropped/cut": 0.0, "length/kept": 9.0}
    assert rules.count(Collected()) == {"dropped/cut": 0.0}


def test_a_group_is_flat_by_the_rewards_that_are_trained_on() -> None:
    alike = [episode(9, member=0), episode(100, member=1)]
    shaped = selection(overlong_buffer=0.2).count(Collected(alike))
    assert shaped == {"overlong": 0.5, "flat_groups": 0.0}
    assert selection(overlong_buffer=0.2).count(Collected(alike[:1]))["flat_groups"] == 1.0
    assert selection(overlong_buffer=0.2).count(Collected()) == {
        "overlong": 0.0,
        "flat_groups": 0.0,
    }
