"""Each estimator against numbers worked out by hand, a slow reference, and what must not matter."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentrl.errors import ConfigError, RunError
from agentrl.trainer.algorithms.advantages.gdpo import gdpo
from agentrl.trainer.algorithms.advantages.gigpo import gigpo
from agentrl.trainer.algorithms.advantages.maxrl import maxrl
from agentrl.trainer.algorithms.advantages.pass_at_k import pass_at_k
from agentrl.trainer.algorithms.advantages.reinforce_pp import reinforce_pp
from agentrl.trainer.algorithms.advantages.remax import remax
from agentrl.trainer.algorithms.estimators import BUILT_IN, make_estimator
from agentrl.trainer.algorithms.made_up import made_up_batch
from agentrl.trainer.algorithms.needs import NEEDS, needs, needs_of
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment


def episodes(
    rewards: Sequence[float], groups: Sequence[int] | None = None, lengths: Sequence[int] = ()
) -> Batch:
    """One episode of one turn for each reward, of one group and one token if nothing is said."""
    lengths = lengths or [1] * len(rewards)
    parts = [segment([1], [(list(range(2, 2 + n)), [9])]) for n in lengths]
    batch = batch_of(parts, turn_rewards=[(r,) for r in rewards])
    group_E = np.array(groups or [0] * len(rewards), np.int32)
    return replace(batch, rewards_E=np.array(rewards, np.float64), group_E=group_E)


def of_episodes(batch: Batch, advantages_N: NDArray[np.float32]) -> list[float]:
    """The advantage at each episode's last trained token."""
    last = [np.flatnonzero(batch.mask_N & (row_N(batch) == r))[-1] for r in range(batch.num_rows)]
    return list(map(float, advantages_N[last]))


def row_N(batch: Batch) -> NDArray[np.int64]:  # the suffix says the axis
    return np.repeat(np.arange(batch.num_rows), np.diff(batch.offsets_R1))


ONE_OF_FOUR = [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "rewards", "expected"),
    [
        ("reinforce", [1, 0], [1, 0]),
        ("grpo", ONE_OF_FOUR, [3**0.5, *[-(3**-0.5)] * 3]),
        ("dr_grpo", ONE_OF_FOUR, [0.75, -0.25, -0.25, -0.25]),
        ("rloo", ONE_OF_FOUR, [1, -1 / 3, -1 / 3, -1 / 3]),
        ("reinforce_pp", [1, 0], [1, -1]),
        ("reinforce_pp_baseline", [1, 0], [1, -1]),
        ("maxrl", ONE_OF_FOUR, [3, -1, -1, -1]),
        ("pass_at_k", ONE_OF_FOUR, [1, -1 / 3, -1 / 3, -1 / 3]),
        ("opo", [1, 0], [0.5, -0.5]),
    ],
)
def test_numbers_by_hand(name: str, rewards: list[float], expected: list[float]) -> None:
    batch = episodes(rewards)
    assert of_episodes(batch, BUILT_IN[name](batch)) == pytest.approx(expected)


def test_distill_raises_what_the_teacher_finds_likelier() -> None:
    batch = episodes([1, 0, 0])
    own, other = np.log([0.5, 0.25, 0.5]), np.log([0.25, 0.5, 0.5])
    logprobs_N, reference_N = (np.zeros(batch.num_tokens, np.float32) for _ in range(2))
    logprobs_N[batch.mask_N], reference_N[batch.mask_N] = own, other
    batch = replace(batch, logprobs_N=logprobs_N, reference_N=reference_N)
    expected = [-np.log(2), np.log(2), 0]
    assert of_episodes(batch, BUILT_IN["distill"](batch)) == pytest.approx(expected)


def test_longer_episodes_weigh_more_in_the_baseline_of_opo() -> None:
    batch = episodes([1, 0], lengths=[3, 1])
    assert of_episodes(batch, BUILT_IN["opo"](batch)) == pytest.approx([0.25, -0.75])


def test_remax_is_measured_by_the_greedy_answer() -> None:
    batch = replace(episodes([1, 0, 1, 0], [0, 0, 1, 1]), greedy_E=np.array([0.0, 0, 1, 1]))
    assert of_episodes(batch, remax(batch)) == [1, 0, 0, -1]
    with pytest.raises(RunError, match="no greedy members"):
        remax(replace(batch, greedy_E=None))


COMPARING = (
    *("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "remax", "opo", "gdpo", "maxrl"),
    *("pass_at_k", "gigpo"),
)


@pytest.mark.parametrize("name", COMPARING)
def test_rewards_that_differ_by_rounding_are_equal(name: str) -> None:
    batch = episodes([0.1 + 0.2, 0.3, 0.3, 0.7, 0.1 + 0.6], [0, 0, 0, 1, 1], [1, 2, 3, 1, 5])
    batch = replace(
        batch,
        greedy_E=np.array([0.3, 0.3, 0.1 + 0.2, 0.1 + 0.6, 0.7]),
        parts_E={"all": batch.rewards_E},
        keys_U=("a",) * 5,
    )
    assert not BUILT_IN[name](batch).any()


def test_parts_of_another_scale_count_alike_in_gdpo() -> None:
    batch = episodes([101, 100, 0, 0])
    parts = {"a": np.array([1.0, 0, 0, 0]), "b": np.array([100.0, 100, 0, 0])}
    small = replace(batch, parts_E=parts)
    large = replace(batch, parts_E={**parts, "b": parts["b"] / 1e4})
    got = of_episodes(small, gdpo(small))
    assert got == pytest.approx(of_episodes(large, gdpo(large)))
    sums = np.array([3**0.5 + 1, 1 - 3**-0.5, -1 - 3**-0.5, -1 - 3**-0.5])
    assert got == pytest.approx((sums - sums.mean()) / sums.std())
    with pytest.raises(RunError, match="no score parts"):
        gdpo(batch)


def test_gigpo_tells_turns_out_of_one_state_apart() -> None:
    turns = [([2], [9]), ([3], [9])]
    batch = batch_of([segment([1], turns)] * 3, turn_rewards=[(0.0, 1.0), (0.0, 0.0), (0.0, 0.0)])
    batch = replace(batch, rewards_E=np.array([1.0, 0, 0]), keys_U=("s", "a", "s", "b", "t", None))
    got = gigpo(batch, discount=0.5, scale_by_std=False)[batch.mask_N]
    whole = [2 / 3, -1 / 3, -1 / 3]
    # Out of "s" two left for 0.5 and 0; every other state was met once.
    assert got.tolist() == pytest.approx(
        [whole[0] + 0.25, whole[0], whole[1] - 0.25, whole[1], whole[2], whole[2]]
    )
    with pytest.raises(RunError, match="no state keys"):
        gigpo(replace(batch, keys_U=None))


def test_turns_of_reinforce_pp_get_what_follows_them() -> None:
    batch = batch_of([segment([1], [([2], [9]), ([3, 4], [])])], turn_rewards=[(1.0, 2.0)])
    got = reinforce_pp(batch, discount=0.5)[batch.mask_N]
    returns = np.array([1 + 0.5 * 1.0, 1.0, 2.0])
    assert got.tolist() == pytest.approx(((returns - returns.mean()) / returns.std()).tolist())


@settings(max_examples=20)
@given(won=st.lists(st.booleans(), min_size=2, max_size=7), k=st.integers(1, 4))
def test_pass_at_k_is_the_mean_over_all_teams(won: list[bool], k: int) -> None:
    batch = episodes([float(w) for w in won])
    got = of_episodes(batch, pass_at_k(batch, k=k))
    teams = list(combinations(range(len(won)), k))
    rewards = [float(any(won[i] for i in team)) for team in teams]
    if len(set(rewards)) < 2:
        assert got == [0.0] * len(won)
        return
    for member in range(len(won)):
        mine = fmean(r for r, team in zip(rewards, teams, strict=True) if member in team)
        assert got[member] == pytest.approx((mine - fmean(rewards)) / pstdev(rewards), abs=1e-5)


GROUPED = [name for name, f in BUILT_IN.items() if "group of 2" in needs_of(f)]
NEUTRAL = [*GROUPED, "reinforce_pp", "gae", "turn_gae", "vapo"]
REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=6, max_size=6)


def rich(rewards: Sequence[float], order: Sequence[int]) -> Batch:
    """Six episodes of two groups, with all that an estimator may ask for, in an order."""
    lengths = [3, 1, 2, 4, 1, 2]
    batch = episodes(
        [rewards[i] for i in order], [i // 3 for i in order], [lengths[i] for i in order]
    )
    values_N = np.where(
        batch.mask_N, batch.ids_N * (1 + np.array(order)[row_N(batch)]) / 40, 0
    ).astype(np.float32)
    return replace(
        batch,
        keys_U=tuple("ab"[i % 2] for i in order),
        parts_E={
            "whole": np.array([rewards[i] for i in order]),
            "odd": np.array([float(i % 2) for i in order]),
        },
        greedy_E=np.array([0.25 + i // 3 for i in order]),
        values_N=np.where(batch.mask_N, values_N, 0).astype(np.float32),
        costs_E=np.array([float(i % 3) for i in order]),
        multiplier=0.5,
        cost_values_N=np.where(batch.mask_N, values_N / 3, 0).astype(np.float32),
        reference_N=np.where(batch.mask_N, -1 - values_N, 0).astype(np.float32),
    )


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=20)
@given(rewards=REWARDS, order=st.permutations(range(6)))
def test_the_order_of_episodes_does_not_matter(
    name: str, rewards: list[float], order: list[int]
) -> None:
    plain, moved = rich(rewards, range(6)), rich(rewards, order)
    got = of_episodes(moved, BUILT_IN[name](moved))
    expected = of_episodes(plain, BUILT_IN[name](plain))
    assert got == pytest.approx([expected[i] for i in order], abs=1e-5)


@pytest.mark.parametrize("name", NEUTRAL)
@settings(max_examples=20)
@given(reward=st.floats(-3, 3))
def test_equal_rewards_teach_nothing_but_a_critic(name: str, reward: float) -> None:
    batch = rich([reward] * 6, range(6))
    batch = replace(batch, parts_E={"whole": batch.rewards_E}, costs_E=batch.rewards_E)
    got = BUILT_IN[name](batch)
    if "critic" in needs_of(BUILT_IN[name]):
        assert abs(float(got[batch.mask_N].mean())) < 1e-5
    else:
        assert not got.any()


@pytest.mark.parametrize("name", [n for n in GROUPED if n not in ("maxrl", "pass_at_k")])
@settings(max_examples=20)
@given(rewards=REWARDS, shift=st.floats(-2, 2))
@example(rewards=[1.0, 0.0, 1.0, 0.0, 0.25, 0.0], shift=0.4)  # parts that cancel, but for rounding
def test_a_constant_added_to_all_rewards_does_not_matter(
    name: str, rewards: list[float], shift: float
) -> None:
    one, other = rich(rewards, range(6)), rich([r + shift for r in rewards], range(6))
    got = of_episodes(other, BUILT_IN[name](other))
    assert got == pytest.approx(of_episodes(one, BUILT_IN[name](one)), abs=1e-4)


@pytest.mark.parametrize("name", BUILT_IN)
def test_degenerate_batches(name: str) -> None:
    estimate = BUILT_IN[name]
    whole = rich([1, 0, 0, 0.25, 1, 0], range(6))
    masked = replace(whole, mask_N=np.zeros_like(whole.mask_N))
    assert not estimate(masked).any()
    alone = rich([1, 0, 0, 0.25, 1, 0], range(6))
    alone = replace(alone, group_E=np.arange(6, dtype=np.int32))
    got = estimate(alone)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    if name in GROUPED and name != "gigpo":
        assert not got.any()
    wrong = replace(whole, rewards_E=np.array([1, np.nan, 0, 0, 0, 0]))
    wrong = replace(wrong, turn_rewards_U=wrong.rewards_E, parts_E={"whole": wrong.rewards_E})
    if name not in ("reinforce", "distill"):  # which asks for no reward
        with pytest.raises(RunError, match="finite"):
            estimate(wrong)


def test_no_two_estimators_are_one() -> None:
    batch = rich([1, 0, 0, 0.25, 1, 0], range(6))
    found = {name: estimate(batch)[batch.mask_N] for name, estimate in BUILT_IN.items()}
    for one, other in combinations(found, 2):
        assert np.abs(found[one] - found[other]).max() > 1e-4, (one, other)


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_can_be_named_and_declare_what_can_be_given(name: str) -> None:
    estimator = make_estimator(TrainerConfig(estimator=name, algorithm="ppo"))
    assert set(estimator.needs) <= NEEDS.keys()
    if name != "pass_at_k":  # teams of two are all that a group of two has
        assert estimator(made_up_batch(estimator.needs)).any()
    doc = BUILT_IN[name].__doc__ or ""
    assert "arXiv" in doc + str(BUILT_IN[name].__globals__["__doc__"]) or "Williams" in doc


def test_options_stand_behind_the_name() -> None:
    batch = episodes(ONE_OF_FOUR)
    one = make_estimator(TrainerConfig(estimator="pass_at_k(k=1)"))(batch)
    assert of_episodes(batch, one) == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    for text, said in (
        ("pass_at_k(n=3)", "estimator pass_at_k has no option n, there is k, success_at"),
        ("pass_at_k(3)", r"pass_at_k\(3\): expected options as name\(option=value, \.\.\.\)"),
        ("pass_at_k(k=3", "expected options as"),
        ("pass_at_k(k=a)", "expected options as"),
        ("pass_at_k(k=0)", "option k: got 0, expected at least 1"),
        ("pass_at_k(k=2.5)", "option k: got 2.5, expected a whole number"),
        ("pass_at_k(**{'k': 3})", "expected options as"),
        ("/tmp/a (b)/none.py:f(k=3)", r"/tmp/a \(b\)/none.py:f cannot be imported"),
        ("/tmp/none.py:f(k='a:b')", "/tmp/none.py:f cannot be imported"),
        ("grpo(scale_by_std=5)", "option scale_by_std: got 5, expected true or false"),
        ("gigpo(discount=3)", "option discount: got 3, expected at least 0 and at most 1"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_estimator(TrainerConfig(estimator=text))


def test_what_the_critic_has_to_know_too_is_a_key() -> None:
    with pytest.raises(ConfigError, match=r"option decay: set trainer\.critic\.decay instead"):
        make_estimator(TrainerConfig(algorithm="ppo", estimator="gae(decay=0.5)"))


def test_needs_are_declared_of_functions_and_classes() -> None:
    @needs("critic")
    @needs("group of 2")
    class Mine:
        def __call__(self, batch: Batch) -> NDArray[np.float32]:
            return batch.rewards_E.astype(np.float32)

    class Called:
        @needs("critic")
        def __call__(self, batch: Batch) -> NDArray[np.float32]:
            return batch.rewards_E.astype(np.float32)

    class Spelt:
        needs = "critic"

    assert needs_of(Mine()) == ("critic", "group of 2")
    assert needs_of(Called()) == needs_of(Spelt()) == ("critic",)
    with pytest.raises(ConfigError, match="needs: got 'critci', did you mean critic"):
        needs("critci")


@pytest.mark.parametrize("name", ["gae", "turn_gae", "vapo"])
def test_a_critic_that_is_right_leaves_nothing_to_learn(name: str) -> None:
    """Its values are float32: what is left of a reward of 0.3 is their rounding."""
    batch = episodes([0.3, 0.7, 0.1])
    values_N = np.where(batch.mask_N, batch.rewards_E[row_N(batch)], 0)
    assert not BUILT_IN[name](replace(batch, values_N=values_N.astype(np.float32))).any()
    off = np.where(values_N > 0.5, values_N + 1e-3, values_N).astype(np.float32)
    assert BUILT_IN[name](replace(batch, values_N=off)).any()


def test_rewards_that_would_silently_teach_nothing_are_refused() -> None:
    batch = made_up_batch(("critic",))
    below = replace(batch, rewards_E=np.array([-1.0, -2.0, 0.5, 1.0]))
    with pytest.raises(RunError, match=r"maxrl: a group's mean reward is -1.5, expected a rate of"):
        maxrl(below)
    assert not maxrl(replace(batch, rewards_E=np.array([-1.0, -1.0, 0.0, 0.0]))).any()
    turns_U = np.where(np.arange(10) % 2, 1e300, -1e300)
    huge = replace(batch, turn_rewards_U=turns_U, rewards_E=np.zeros(4))
    for name in ("reinforce_pp", "gae", "turn_gae", "vapo"):
        with pytest.raises(RunError, match="too large to be brought to one scale"):
            BUILT_IN[name](huge)
