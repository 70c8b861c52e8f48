"""What an episode is called and drawn from: its id, the number of its group, its seeds."""

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout import derive_seed
from agentrl.types import EpisodeKey, Purpose
from agentrl.types.episode import turn_seed

PURPOSES: tuple[Purpose, ...] = ("train", "eval", "demonstration")
NUMBERS = st.integers(0, 12) | st.integers(0, 10**6)


@st.composite
def keys(draw: st.DrawFn) -> EpisodeKey:
    purpose = draw(st.sampled_from(PURPOSES))
    key = EpisodeKey.first(run=0, purpose=purpose, step=draw(NUMBERS), place=draw(NUMBERS))
    return replace(key, member=draw(st.integers(0, 3)), attempt=draw(st.integers(0, 3)))


@settings(max_examples=100)
@given(one=keys(), other=keys())
def test_two_episodes_share_neither_id_nor_seed(one: EpisodeKey, other: EpisodeKey) -> None:
    same = one == other
    assert (one.id == other.id) is same
    assert (one.seed("t") == other.seed("t")) is same


@settings(max_examples=100)
@given(one=keys(), other=keys())
def test_a_group_has_its_number_alone(one: EpisodeKey, other: EpisodeKey) -> None:
    same = one.id.rpartition("-m")[0] == other.id.rpartition("-m")[0]
    assert (one.group == other.group) is same


def test_groups_of_neighbouring_steps_and_of_all_purposes_have_other_numbers() -> None:
    groups = [
        EpisodeKey.first(run=0, purpose=purpose, step=step, place=place).group
        for purpose, step, place in product(PURPOSES, range(20), (0, 1, 9, 10, 999_999_999))
    ]
    assert len({*groups}) == len(groups)
    assert max(groups) < 2**53  # exact in JSON too


def test_each_part_of_the_identity_changes_the_seed() -> None:
    key = EpisodeKey.first(run=1, step=2, place=3)
    others = [
        EpisodeKey.first(run=0, step=2, place=3),
        EpisodeKey.first(run=1, step=1, place=3),
        EpisodeKey.first(run=1, step=2, place=2),
        EpisodeKey.first(run=1, step=2, place=3, purpose="eval"),
        replace(key, member=1),
        replace(key, attempt=1),
    ]
    seeds = {key.seed("a"), key.seed("b"), *(other.seed("a") for other in others)}
    assert len(seeds) == 8


def test_an_identity_keeps_its_seed_for_good() -> None:
    """Runs that are resumed, and results that were published, stand on these numbers."""
    key = replace(EpisodeKey.first(run=7, step=12, place=3), member=5, attempt=1)
    assert key.id == "train-s12-g3-m5-a1"
    assert key.group == 120_000_000_003
    assert key.seed("task") == derive_seed(7, "train", 12, "task", 3, 5, 1)
    assert key.seed("task") == 3749751615080292874
    assert [turn_seed(1, turn) for turn in range(2)] == [2177342782468422678, 4354685564936845355]
