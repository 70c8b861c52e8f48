"""Corrections of what the engine sampled otherwise: numbers by hand, and a slow reference."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import RecordMismatch, RunError
from agentrl.rollout import make_batch
from agentrl.tokens import verify_batch
from agentrl.trainer.algorithms.corrections import (
    BUILT_IN,
    CheckedCorrection,
    correction_metrics,
    leave_out_rejected,
)
from agentrl.trainer.algorithms.estimators import BUILT_IN as ESTIMATORS
from agentrl.trainer.algorithms.made_up import made_up_batch
from agentrl.trainer.algorithms.needs import needs_of
from agentrl.trainer.algorithms.policy_losses.clip import clip
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.algorithms.rollout_correction import icepop
from agentrl.trainer.algorithms.trained_tokens import trained_tokens
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.protocol import Trainer
from agentrl.types import Batch
from benchmarks.corrections import LENGTH, METHODS, SINGLE, Model, faults, measure
from tests.unit.trainer.batches import batch_of as recorded
from tests.unit.trainer.batches import random_segments

Rows = Sequence[Sequence[float]]
"""The log ratio of each trained token, row by row."""


def batch_of(rows: Rows, *, episodes: Sequence[int] | None = None, version: int = 0) -> Batch:
    """Each row is a token of the prompt, then trained tokens, a token of the environment between.

    The engine gave each of them a logprob of -1.
    """
    lengths = [max(1, 2 * len(row)) for row in rows]
    offsets_R1 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    mask_N, proximal_N = np.zeros(offsets_R1[-1], np.bool_), np.zeros(offsets_R1[-1], np.float32)
    for start, row in zip(offsets_R1.tolist(), rows, strict=False):
        places = start + 1 + 2 * np.arange(len(row))
        mask_N[places], proximal_N[places] = True, np.array(row) - 1
    episode_R = np.array(range(len(rows)) if episodes is None else episodes, np.int32)
    number = int(episode_R.max(initial=-1)) + 1
    return replace(
        make_batch([], temperature=1.0),
        ids_N=np.arange(len(mask_N), dtype=np.int32),
        mask_N=mask_N,
        logprobs_N=np.where(mask_N, np.float32(-1), np.float32(0)),
        proximal_N=proximal_N,
        versions_N=np.full(len(mask_N), version, np.int32),
        offsets_R1=offsets_R1,
        episode_R=episode_R,
        episode_ids=tuple(f"episode-{e}" for e in range(number)),
        group_E=np.arange(number, dtype=np.int32) // 2,
        rewards_E=np.arange(number) % 3 / 2.0,
    )


def corrected(name: str, batch: Batch, **options: float) -> Batch:
    return CheckedCorrection(name, lambda b: BUILT_IN[name](b, **options))(batch)


def factors(name: str, rows: Rows, **options: float) -> list[list[float | None]]:
    """Row by row: each trained token's factor, None where it is rejected."""
    before = batch_of(rows)
    after = corrected(name, before, **options)
    found_N = np.ones(before.num_tokens) if after.factors_N is None else after.factors_N
    assert not found_N[~after.mask_N].any() or after.factors_N is None
    return [
        [
            float(found_N[n]) if after.mask_N[n] else None
            for n in range(before.row(r).start, before.row(r).stop)
            if before.mask_N[n]
        ]
        for r in range(before.num_rows)
    ]


def log(*ratios: float) -> list[float]:
    return [math.log(ratio) for ratio in ratios]


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("decoupled", [[0.2, -0.1], [0]], [[1.2214, 0.9048], [1]]),
        ("tis", [log(0.5, 1, 7)], [[0.5, 1, 2]]),
        ("mis", [log(0.5, 1, 7)], [[0.5, 1, None]]),
        ("icepop", [log(0.4, 1, 7), log(0.6, 4.9)], [[None, 1, None], [0.6, 4.9]]),
        ("sequence_tis", [[0.5, 0.1], [0.5, 0.3]], [[1.8221, 1.8221], [2, 2]]),
        ("sequence_mis", [[0.5, 0.1], [0.5, 0.3]], [[1.8221, 1.8221], [None, None]]),
        ("reject_k1", [[0.03, -0.02], [0.03, 0], [-0.03, 0]], [[1, 1], [None] * 2, [None] * 2]),
        ("reject_k3", [[0.1, -0.1], [0.2, -0.2]], [[1, 1], [None, None]]),
    ],
)
def test_numbers_by_hand(name: str, rows: Rows, expected: list[list[float | None]]) -> None:
    assert factors(name, rows) == [
        [value if value is None else pytest.approx(value, abs=1e-4) for value in row]
        for row in expected
    ]


def slowly(name: str, rows: Rows) -> list[list[float | None]]:
    """The same in loops, written from the formulas."""
    found: list[list[float | None]] = []
    for row in rows:
        product = math.exp(min(20.0, max(-20.0, sum(row))))
        mean = sum(row) / len(row) if row else 0.0
        k3 = sum(math.exp(x) - x - 1 for x in row) / max(1, len(row))
        weights: list[float | None] = []
        for x in row:
            r = math.exp(x)
            match name:
                case "decoupled":
                    weights.append(r)
                case "tis":
                    weights.append(r if r < 2 else 2.0)
                case "mis":
                    weights.append(r if r <= 2 else None)
                case "icepop":
                    weights.append(r if 0.5 <= r <= 5 else None)
                case "sequence_tis":
                    weights.append(product if product < 2 else 2.0)
                case "sequence_mis":
                    weights.append(product if product <= 2 else None)
                case "reject_k1":
                    weights.append(1.0 if 0.99 <= math.exp(mean) <= 1.01 else None)
                case _:
                    weights.append(1.0 if k3 <= 0.01 else None)
        found.append(weights)
    return found


# Steps of 1/64 are exact in float32, and no bound lies within rounding of what they give.
LOG_RATIO = st.integers(-130, 130).map(lambda n: n / 64) | st.integers(-1, 1).map(lambda n: n / 64)
ROWS = st.lists(st.lists(LOG_RATIO, max_size=5), min_size=1, max_size=4)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=25)
@given(rows=ROWS)
def test_loops_give_the_same(name: str, rows: list[list[float]]) -> None:
    expected = slowly(name, rows)
    for row, slow in zip(factors(name, rows), expected, strict=True):
        assert [f is None for f in row] == [f is None for f in slow]
        assert [f or 0 for f in row] == pytest.approx([f or 0 for f in slow], rel=1e-5)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=15)
@given(rows=ROWS, data=st.data())
def test_rows_are_apart_and_their_order_does_not_matter(
    name: str, rows: list[list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    found = factors(name, rows)
    assert factors(name, [rows[r] for r in order]) == [found[r] for r in order]
    assert [factors(name, [row])[0] for row in rows] == found


@pytest.mark.parametrize("name", BUILT_IN)
def test_equal_policies_are_left_alone(name: str) -> None:
    assert factors(name, [[0, 0, 0], [], [0]]) == [[1, 1, 1], [], [1]]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("behavior", [-1.0, -math.inf])
@pytest.mark.parametrize("proximal", [-math.inf, -1e4, -1.0, 79.0])
def test_infinities_and_huge_ratios_stay_finite(
    name: str, behavior: float, proximal: float
) -> None:
    batch = batch_of([[0, 0], [0]])
    assert batch.proximal_N is not None
    batch.logprobs_N[1], batch.proximal_N[1] = behavior, proximal
    after = corrected(name, batch)
    log_ratio = -math.inf if proximal == -math.inf else proximal - behavior
    if after.factors_N is None:
        assert after.mask_N[[1, 3]].all() == (log_ratio == 0)  # its whole row
    else:
        assert np.isfinite(after.factors_N).all()
        assert after.factors_N.max() <= math.exp(20.001)
        if log_ratio < -20:
            assert after.factors_N[1] < 1e-8
        elif log_ratio > 20:
            assert after.factors_N[1] >= 2 or not after.mask_N[1]
    assert after.mask_N[5]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_batch_without_tokens_stays_empty(name: str) -> None:
    for batch in (batch_of([]), batch_of([[], []])):
        after = corrected(name, batch)
        assert not after.mask_N.any()
        assert correction_metrics(after) == {}
        assert leave_out_rejected(after).group_E.tolist() == batch.group_E.tolist()


@pytest.mark.parametrize("name", BUILT_IN)
def test_they_need_the_trainer_s_logprobs(name: str) -> None:
    assert needs_of(BUILT_IN[name]) == ("proximal",)
    with pytest.raises(RunError, match="has no proximal logprobs; let Trainer"):
        corrected(name, replace(batch_of([[0]]), proximal_N=None))
    assert "arXiv:" in (BUILT_IN[name].__doc__ or "")


def test_a_sequence_is_one_segment_of_an_episode() -> None:
    """Two segments of one episode: only the second is rejected, and the episode stays."""
    batch = batch_of([[0.1], [0.9], [0]], episodes=[0, 0, 1])
    after = corrected("sequence_mis", batch)
    assert after.mask_N.tolist() == [False, True, False, False, False, True]
    assert leave_out_rejected(after).group_E.tolist() == [0, 0]


def test_what_is_rejected_leaves_its_group() -> None:
    """Rewards 0, 0.5, 1 in one group; without the third the others are at -1 and 1."""
    batch = replace(batch_of([[0], [0], [3], []]), group_E=np.zeros(4, np.int32))
    after = corrected("mis", batch)
    assert after.rejected_N is not None
    assert np.flatnonzero(after.rejected_N).tolist() == [5]
    seen = leave_out_rejected(after)
    # The fourth never had a token that is trained; its reward of 0 counts as before.
    assert seen.group_E.tolist() == [0, 0, 1, 0]
    by_hand = np.array([0, 0.5, 0])
    by_hand = (by_hand - by_hand.mean()) / by_hand.std()
    assert ESTIMATORS["grpo"](seen)[[1, 3, 5]].tolist() == pytest.approx([*by_hand[:2], 0])


class ProximalAlready:
    def with_outputs(self, batch: Batch, names: Collection[str]) -> Batch:
        assert names == ["proximal"]
        assert batch.proximal_N is not None
        return batch


def test_a_recipe_corrects_before_it_compares_and_weighs() -> None:
    """Rewards 0, 0.5, 1, the third rejected: two tokens are left, of which each counts a half."""
    batch = replace(batch_of([[0.1], [0], [3]]), group_E=np.zeros(3, np.int32))
    recipe = make_recipe(TrainerConfig(correct="mis(cap=2)", normalise="token_mean"))
    assert "proximal" in recipe.needs
    ready = recipe.prepare(batch, cast("Trainer", ProximalAlready()))
    assert ready.group_E.tolist() == [0, 0, 0]
    assert ready.advantages_N is not None
    assert ready.weights_N is not None
    assert ready.advantages_N.tolist() == pytest.approx([0, -1, 0, 1, 0, 0])
    assert ready.weights_N.tolist() == pytest.approx([0, math.exp(0.1) / 2, 0, 0.5, 0, 0])
    plain = make_recipe(TrainerConfig())
    assert plain.correction is None
    assert "proximal" not in plain.needs


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"gae", "turn_gae", "vapo"}))
def test_no_estimator_counts_what_is_rejected(name: str) -> None:
    """Whatever the reward of a rejected member is, the others' advantages are the same."""
    estimate = ESTIMATORS[name]
    batch = made_up_batch((*needs_of(estimate), "proximal"))
    assert batch.proximal_N is not None
    batch.proximal_N[5:8] += 3  # the second member of the first group
    kept = leave_out_rejected(corrected("sequence_mis", batch))
    advantages: list[list[float]] = []
    for reward in (0.0, 5.0):
        rewards_E, turn_rewards_U = kept.rewards_E.copy(), kept.turn_rewards_U
        assert turn_rewards_U is not None
        turns_U = turn_rewards_U.copy()
        rewards_E[1], turns_U[3] = reward, reward
        parts_E = {k: np.array([v[0], reward, *v[2:]]) for k, v in kept.parts_E.items()}
        changed = replace(kept, rewards_E=rewards_E, turn_rewards_U=turns_U, parts_E=parts_E)
        advantages.append(estimate(changed).tolist())
    assert advantages[0] == advantages[1]
    assert any(advantages[0]) or name == "pass_at_k"  # of groups of two teams none stand out


def test_metrics_by_hand() -> None:
    found = correction_metrics(corrected("mis", batch_of([log(1, 4), log(1.005), log(7)]), cap=5))
    assert found["correct/corrected"] == 0.5
    assert found["correct/rejected"] == 0.25
    assert found["correct/rejected_episodes"] == pytest.approx(1 / 3)
    total, squares = 1 + 4 + 1.005, 1 + 16 + 1.005**2
    assert found["correct/effective"] == pytest.approx(total**2 / (4 * squares))
    assert found["correct/late0_ratio_p50"] == pytest.approx(1.005)


def test_metrics_tell_the_versions_apart() -> None:
    batch = batch_of([log(1, 4), log(1), log(7)])
    batch.versions_N[:] = np.repeat([5, 5, 2], [4, 2, 2])
    found = correction_metrics(corrected("reject_k3", batch))
    assert {k: v for k, v in found.items() if "p50" in k} == {
        "correct/late0_ratio_p50": pytest.approx(1),
        "correct/late3_ratio_p50": pytest.approx(7),
    }
    assert found["correct/effective"] == 0.25
    assert found["correct/corrected"] == found["correct/rejected"] == 0.75
    assert correction_metrics(batch) == {}
    everything = correction_metrics(corrected("icepop", batch_of([log(9)])))
    assert everything["correct/effective"] == 0
    assert everything["correct/rejected_episodes"] == 1


def gives(**fields: object) -> Callable[[Batch], Batch]:
    return lambda batch: replace(batch, **fields)  # type: ignore[arg-type]  # wrong on purpose


def give_nothing(batch: Batch) -> Any:
    return None


def train_the_rest(batch: Batch) -> Batch:
    return replace(batch, mask_N=~batch.mask_N)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (give_nothing, "mine gave a NoneType, expected a batch"),
        (train_the_rest, "gave a mask that trains token 0 of a segment of episode episode-0, whic"),
        (
            gives(mask_N=np.ones(3, np.bool_)),
            r"a mask of bool of shape \(3,\), expected a bool arr",
        ),
        (gives(mask_N=np.zeros(4)), "gave a mask of float64 of shape"),
        (gives(mask_N=None), "gave a mask of type NoneType, expected a bool array"),
        (gives(factors_N=np.ones(4)), "as factors it gave an array of float64 of shape"),
        (gives(factors_N=[1.0] * 4), "as factors it gave a list, expected a float32 array"),
        (
            gives(factors_N=np.array([0, 1, 0, np.nan], np.float32)),
            "gave nan for token 3 of the batch .episode episode-1., expected finite",
        ),
        (
            gives(factors_N=np.full(4, -1, np.float32)),
            "gave -1.0 for token 0 .*, expected at",
        ),
        (
            gives(factors_N=np.ones(4, np.float32)),
            "token 0 .*, which is not trained: expe",
        ),
    ],
)
def test_what_one_s_own_gives_is_checked(function: Callable[[Batch], Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        CheckedCorrection("mine", function)(batch_of([[0], [0]]))


def test_what_was_rejected_before_stays_rejected() -> None:
    def reject(batch: Batch) -> Batch:
        mask_N = batch.mask_N.copy()
        mask_N[1] = False
        return replace(batch, mask_N=mask_N)

    after = CheckedCorrection("mine", reject)(batch_of([[0], [0]]))
    assert after.mask_N.tolist() == [False, False, False, True]
    assert after.rejected_N is not None
    assert after.rejected_N.tolist() == [False, True, False, False]
    twice = CheckedCorrection("icepop", icepop)(after)
    assert twice.rejected_N is not None
    assert twice.rejected_N.tolist() == [False, True, False, False]


def test_a_sure_policy_is_no_engine_without_logprobs() -> None:
    sure = np.zeros(4, np.float32)
    batch = replace(batch_of([[0], [0]]), logprobs_N=sure, proximal_N=sure - np.float32(1e-6))
    assert corrected("tis", batch).num_trained == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"temperature": 0.0}, "sampled at temperature 0, expected above 0; greedy samples have"),
        ({"logprobs_N": np.zeros(4, np.float32)}, "gave a logprob of 0 for all of the 2 tokens"),
        (
            {"proximal_N": np.full(4, np.nan, np.float32)},
            "logprob of token 0 .* is nan; its wei",
        ),
    ],
)
def test_what_has_no_ratio_is_refused(changed: Mapping[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        corrected("tis", replace(batch_of([[0], [0]]), **changed))


def test_the_way_from_the_engine_is_paid_once() -> None:
    """With factors a loss starts at a ratio of 1 to the proximal policy, else to the engine."""
    batch = replace(batch_of([[0.5]]), advantages_N=np.ones(2, np.float32))
    for name, old, weight in (("decoupled", -0.5, math.exp(0.5)), ("reject_k3", -1.0, 1.0)):
        after = corrected(name, batch, **({} if name == "decoupled" else {"most": 1.0}))
        factors_N = after.mask_N if after.factors_N is None else after.factors_N
        after = replace(after, weights_N=factors_N.astype(np.float32))
        logprobs = torch.tensor([old], dtype=torch.float64, requires_grad=True)
        tokens = trained_tokens(after, np.array([1]), logprobs.detach())
        total, _ = clip(logprobs, tokens)
        torch.autograd.backward(total)
        assert total.item() == pytest.approx(-weight)
        assert logprobs.grad is not None
        assert logprobs.grad.item() == pytest.approx(-weight)


def test_the_record_is_verified_as_it_was_sampled() -> None:
    batch = recorded(random_segments((20, 30, 12)))
    proximal_N = np.where(batch.mask_N, batch.logprobs_N + 1, 0).astype(np.float32)
    proximal_N[batch.row(0)] = batch.logprobs_N[batch.row(0)]
    after = corrected("mis", replace(batch, proximal_N=proximal_N))
    assert 0 < after.num_trained < batch.num_trained
    assert verify_batch(after) == after.num_trained
    with pytest.raises(RecordMismatch):
        verify_batch(replace(after, rejected_N=None))
    after.logprobs_N[np.flatnonzero(batch.mask_N & ~after.mask_N)[0]] -= 0.5
    with pytest.raises(RecordMismatch):
        verify_batch(after)


def test_factors_without_a_proximal_policy_are_refused() -> None:
    batch = replace(batch_of([[0]]), proximal_N=None)
    with pytest.raises(RunError, match=r"mine gave factors .* declare it by @needs"):
        CheckedCorrection("mine", gives(factors_N=batch.mask_N.astype(np.float32)))(batch)


def test_bias_and_variance_are_what_the_formulas_promise() -> None:
    single = measure(Model(1, 0), SINGLE)
    assert faults(measure(Model(LENGTH, 0), METHODS), single) == []
    wrong = {**METHODS, "all sequence ratios": METHODS["decoupled"], "mis": METHODS["none"]}
    said = "\n".join(faults(measure(Model(LENGTH, 0), wrong), single))
    assert "four versions late: sequence ratios have a bias of" in said
    assert "one version late: mis has more variance than decoupled" in said
