"""Each policy loss against numbers worked out by hand, and against what must not matter."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.trainer.algorithms.losses import BUILT_IN, make_loss
from agentrl.trainer.algorithms.needs import needs_of
from agentrl.trainer.algorithms.policy_losses.clip import clip
from agentrl.trainer.algorithms.policy_losses.clip_clone import clip_clone
from agentrl.trainer.algorithms.policy_losses.covariance import clip_cov, kl_cov
from agentrl.trainer.algorithms.policy_losses.gmpo import gmpo
from agentrl.trainer.algorithms.policy_losses.gspo import gspo
from agentrl.trainer.algorithms.trained_tokens import TrainedTokens, trained_tokens
from agentrl.trainer.config import TrainerConfig
from tests.unit.trainer.rows import one_row, tokens_of_rows

Loss = Callable[..., tuple[Tensor, Mapping[str, Any]]]
Rows = list[list[float]]


def measured(
    loss: Loss, rows: Rows, tokens: TrainedTokens, **options: float
) -> tuple[float, list[float], Mapping[str, Any]]:
    """The value, its gradient by the logprobs, the statistics."""
    flat = [x for row in rows for x in row]
    logprobs = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
    total, found = loss(logprobs, tokens, **options)
    torch.autograd.backward(total)
    assert logprobs.grad is not None
    return total.item(), logprobs.grad.tolist(), {k: float(v) for k, v in found.items()}


@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "value", "gradient"),
    [
        ("clip", 1.1, 1, -1.1, -1.1),
        ("clip", 1.5, 1, -1.2, 0),
        ("clip", 0.5, 1, -0.5, -0.5),
        ("dual_clip", 2, -1, 2, 2),
        ("dual_clip", 5, -1, 3, 0),
        ("dual_clip", 1.5, 1, -1.2, 0),
        ("dual_clip", 0.5, -1, 0.8, 0),
        ("gspo", 1, 2, -2, -2),
        ("gspo", 1.1, 1, -1.0004, 0),
        ("gmpo", math.exp(0.6), 1, -math.exp(0.4), 0),
        ("gmpo", math.exp(-0.6), 1, -math.exp(-0.6), -math.exp(-0.6)),
        ("gmpo", math.exp(-0.6), -1, math.exp(-0.4), 0),
        ("cispo", 10, 1, -5 * (math.log(10) - 1), -5),
        ("cispo", 0.01, 1, -0.01 * (math.log(0.01) - 1), -0.01),
        ("sapo", 1, 1, -2, -1),
        ("sapo", 1, -1, 2 / 1.05, 1),
        ("policy_gradient", 1.7, 2, -2 * (math.log(1.7) - 1), -2),
        ("clone", 1.7, 2, -(math.log(1.7) - 1), -1),
        ("clone", 1.7, -2, 0, 0),
        ("kl_cov", 1.5, 1, -1.5 + math.log(1.5), -1.5 + 1),
        ("clip_cov", 1.1, 1, -1.1, -1.1),
    ],
)
def test_numbers_by_hand(
    name: str, ratio: float, advantage: float, value: float, gradient: float
) -> None:
    tokens = one_row([-1], [advantage])
    got = measured(BUILT_IN[name], [[math.log(ratio) - 1]], tokens)
    assert got[0] == pytest.approx(value)
    assert got[1] == [pytest.approx(gradient)]


@pytest.mark.parametrize(
    ("old", "new", "advantage", "gradient"),
    [(0.5, 0.8, 1, 0), (0.5, 0.8, -1, 1.6), (0.01, 0.05, 1, -5), (0.5, 0.2, -1, 0)],
)
def test_dppo_goes_by_how_far_a_probability_moved(
    old: float, new: float, advantage: float, gradient: float
) -> None:
    tokens = one_row([math.log(old)], [advantage])
    _, got, _ = measured(BUILT_IN["dppo"], [[math.log(new)]], tokens)
    assert got == [pytest.approx(gradient)]


def test_a_sequence_has_one_ratio() -> None:
    tokens = tokens_of_rows([[-1, -1], [-2]], [[1, 1], [-1]])
    value, gradient, found = measured(gspo, [[-0.9, -1.1], [-2]], tokens)
    assert value == pytest.approx(-1 - 1 + 1)
    assert gradient == pytest.approx([-1, -1, 1])
    assert found == {"clip_fraction": 0}
    assert measured(gspo, [[-0.9, -1], [-2]], tokens)[2] == {"clip_fraction": 2}
    value, gradient, _ = measured(gmpo, [[-0.8, -0.4], [-2]], tokens)
    mean = math.exp((0.2 + 0.4) / 2)
    assert value == pytest.approx(-2 * mean + 1)
    assert gradient == pytest.approx([-mean, 0, 1])
    apart = tokens_of_rows([[-1, -1]], [[1, -1]])  # which sum to 0 over the row, and teach
    for loss in (gspo, gmpo):
        assert measured(loss, [[-1, -1]], apart)[1] == pytest.approx([-1, 1])


def test_right_answers_are_made_likelier_by_their_mean() -> None:
    tokens = tokens_of_rows(
        [[-2], [-2], [-1, -1]],
        [[0], [0], [0, 0]],
        [[0.25], [0.25], [0.25, 0.25]],
        rewards=[1, 0, 1],
    )
    value, gradient, found = measured(clip_clone, [[-2], [-2], [-1, -1]], tokens)
    assert value == pytest.approx(0.1 * (2 + 1 + 1) / 3)
    assert gradient == pytest.approx([-0.1 / 3, 0, -0.1 / 3, -0.1 / 3])
    assert found == {"clip_fraction": 0, "right": 3}
    wrong = tokens_of_rows([[-2]], [[1]], rewards=[0.5])
    assert measured(clip_clone, [[-2]], wrong)[:2] == measured(clip, [[-2]], wrong)[:2]
    half = measured(clip_clone, [[-2]], wrong, success_at=0.5, share=1.0)
    assert half[1] == [pytest.approx(-2)]


def test_covariance_is_that_of_the_whole_step() -> None:
    behavior: Rows = [[-0.125, -3], [-3, -0.125, -2.9]]
    advantages: Rows = [[3, 2], [-2, -2, 2]]
    tokens = tokens_of_rows(behavior, advantages)
    _, gradient, found = measured(kl_cov, behavior, tokens, share=0.2)
    assert found["held_back"] == 1
    assert gradient[0] == pytest.approx(-3)  # the kink of |log ratio| at 0
    moved: Rows = [[0.0, -3], [-3, -0.125, -2.9]]
    assert measured(kl_cov, moved, tokens, share=0.2)[1][0] == pytest.approx(
        -3 * math.exp(0.125) + 1
    )
    _, gradient, found = measured(clip_cov, behavior, tokens, share=0.4, least=1, most=9)
    assert found["held_back"] == 2
    assert [g == 0 for g in gradient] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("loss", "free"),
    [
        (partial(kl_cov, share=0.25), partial(kl_cov, coef=0)),
        (partial(clip_cov, share=0.25, least=0, most=99, high=99), partial(clip, high=99)),
    ],
)
def test_who_is_held_back_stays_so_from_a_steps_first_update_to_its_last(
    loss: Loss, free: Loss
) -> None:
    first: Rows = [[-0.1, -3], [-3, -0.2]]
    later: Rows = [[-3.1, -0.1], [-0.1, -3]]
    advantages: Rows = [[3, 3.5], [-3, -3.5]]

    def find_held_back(logprobs: Rows, tokens: TrainedTokens) -> list[bool]:
        """Those whose gradient is another than without holding back, a little off the kink at 0."""
        moved = [[x + 0.01 for x in row] for row in logprobs]
        held, plain = (measured(f, moved, tokens)[1] for f in (loss, free))
        return [one != other for one, other in zip(held, plain, strict=True)]

    tokens = tokens_of_rows(first, advantages)
    assert find_held_back(first, tokens) == [True, False, False, False]
    assert find_held_back(later, tokens) == [True, False, False, False]
    # The paper goes by the policy of each update, which would be this:
    of_later = tokens_of_rows(later, advantages)
    assert find_held_back(later, of_later) == [False, True, False, False]
    # What the trainer itself computed before the first update is the policy of that update.
    passed = replace(of_later.batch, proximal_N=tokens.batch.logprobs_N)
    late = replace(of_later, batch=passed)
    assert find_held_back(first, late) == [True, False, False, False]


LOGPROB = st.floats(-4, -0.05)
ROW = st.lists(st.tuples(LOGPROB, LOGPROB, st.floats(-2, 2)), min_size=1, max_size=4)


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=15)
@given(rows=st.lists(ROW, min_size=2, max_size=4))
def test_micro_batches_do_not_matter(
    name: str, rows: list[list[tuple[float, float, float]]]
) -> None:
    new, old, advantages = ([[t[i] for t in row] for row in rows] for i in range(3))
    rewards = [float(row % 2) for row in range(len(rows))]
    tokens = tokens_of_rows(old, advantages, reference=new, rewards=rewards)
    value, gradient, found = measured(BUILT_IN[name], new, tokens)
    value_sum, grads, sums = 0.0, list[float](), dict[str, float]()
    for row in range(len(rows)):
        source_K = tokens.source_K[(tokens.row_K == row).numpy()]
        part = trained_tokens(tokens.batch, source_K, tokens.old_K)
        one = measured(BUILT_IN[name], [new[row]], part)
        value_sum, grads = value_sum + one[0], grads + one[1]
        sums = {k: sums.get(k, 0.0) + v for k, v in one[2].items()}
    assert value_sum == pytest.approx(value, abs=1e-5)
    assert grads == pytest.approx(gradient, abs=1e-5)
    assert sums == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("gap", [-80.0, 80.0, -math.inf])
def test_huge_ratios_stay_finite(name: str, gap: float) -> None:
    tokens = tokens_of_rows([[-90, -1]], [[1, -1]], reference=[[-90, -1]])
    value, gradient, _ = measured(BUILT_IN[name], [[-90 + gap, -1]], tokens)
    assert np.isfinite([value, *gradient]).all()


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_could_not_be_sampled_stays_finite(name: str) -> None:
    tokens = tokens_of_rows([[-math.inf, -1]], [[1, -1]], reference=[[-1, -1]])
    for now in (-math.inf, -1.0):
        value, gradient, _ = measured(BUILT_IN[name], [[now, -1]], tokens)
        assert np.isfinite([value, *gradient]).all()


def test_the_gradient_raises_a_good_token_and_lowers_a_bad_one() -> None:
    for name, loss in BUILT_IN.items():
        for advantage, sign in ((1.0, 1), (-1.0, -1)):
            logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
            logprobs = torch.log_softmax(logits, 0)[1:2]
            behavior = [logprobs.item()]
            reference = [[behavior[0] + advantage]]
            total, _ = loss(logprobs, tokens_of_rows([behavior], [[advantage]], None, reference))
            torch.autograd.backward(total)
            assert logits.grad is not None
            if name != "clone" or sign > 0:
                assert torch.sign(-logits.grad[1]).item() == sign, name


def test_no_two_losses_are_one() -> None:
    rng = np.random.default_rng(0)
    shape = (4, 8)
    old = rng.uniform(-4, -0.1, shape)
    new, advantages = old + rng.normal(0, 0.9, shape), rng.normal(0, 2, shape)
    advantages[0] = np.linspace(3, 6, 8)  # some of high covariance
    tokens = tokens_of_rows(
        old.tolist(),
        advantages.tolist(),
        reference=(old - 0.3 * advantages).tolist(),
        rewards=[1, 0, 1, 0],
    )
    found = {n: np.array(measured(f, new.tolist(), tokens)[1]) for n, f in BUILT_IN.items()}
    for one, other in combinations(found, 2):
        assert np.abs(found[one] - found[other]).max() > 1e-4, (one, other)


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_can_be_named_and_say_where_they_come_from(name: str) -> None:
    assert make_loss(TrainerConfig(loss=name)).needs == needs_of(BUILT_IN[name])
    doc = (BUILT_IN[name].__doc__ or "") + str(BUILT_IN[name].__globals__["__doc__"])
    assert "arXiv" in doc or "Williams" in doc
    make_loss(TrainerConfig(loss=name, ranks=2, sequence_parallel=2))


def test_options_stand_behind_the_name() -> None:
    tokens = one_row([-1], [1])
    loss = make_loss(TrainerConfig(loss="gspo(low=0.1, high=0.5)"))
    assert measured(loss.measure, [[-0.9]], tokens)[2] == {"clip_fraction": 0}
    with pytest.raises(ConfigError, match="loss gspo has no option hihg, did you mean high"):
        make_loss(TrainerConfig(loss="gspo(hihg=1)"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clip(low=-1)", "option low: got -1, expected at least 0"),
        ("clip(high=1e999)", "option high: got inf, expected a finite number"),
        ("clip(low=True)", "option low: got True, expected a number"),
        ("clip(low='a')", "option low: got 'a', expected a number"),
        ("sapo(positive=0)", "option positive: got 0, expected more than 0"),
        ("sapo(positive=-1)", "option positive: got -1, expected more than 0"),
        ("clip_cov(share=2)", "option share: got 2, expected more than 0 and at most 1"),
        ("clip_cov(share=-1)", "option share: got -1, expected more than 0 and at most 1"),
        ("clip(low=-NaN)", "option low: got nan, expected a finite number"),
        ("clip(low=0.1, low=0.2)", "expected options as"),
        ("clip(low=0.1)(high=0.2)", "expected options as"),
        ("clip(low=" + "-" * 5000 + "1)", "expected options as"),
    ],
)
def test_values_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_loss(TrainerConfig(loss=text))
    assert said in str(caught.value)


def test_who_is_held_back_does_not_hang_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(3)
    old, new = rng.uniform(-4, -0.1, (2, 6, 4))
    advantages = rng.normal(0, 3, (6, 4))
    marks = rng.integers(0, 2**32, (6, 5), dtype=np.uint32)
    totals: list[float] = []
    alike: list[float] = []  # all covariances are 0: marks alone choose
    for order in (np.arange(6), rng.permutation(6)):
        tokens = tokens_of_rows(old[order].tolist(), np.ones((6, 4)).tolist())
        batch = replace(tokens.batch, marks_N=marks[order].reshape(-1))
        found = measured(kl_cov, new[order].tolist(), replace(tokens, batch=batch), share=0.2)
        alike.append(found[0])
        tokens = tokens_of_rows(old[order].tolist(), advantages[order].tolist())
        batch = replace(tokens.batch, marks_N=marks[order].reshape(-1))
        found = measured(
            clip_cov, new[order].tolist(), replace(tokens, batch=batch), share=0.2, least=0, most=99
        )
        assert found[2]["held_back"] == 4
        totals.append(found[0])
    assert totals[0] == pytest.approx(totals[1])
    assert alike[0] == pytest.approx(alike[1])
