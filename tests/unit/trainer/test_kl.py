"""Estimators of the divergence against enumeration of a vocabulary of three, in loss and reward."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.errors import ConfigError, RunError
from agentrl.trainer.algorithms.advantages.gae import gae
from agentrl.trainer.algorithms.advantages.gigpo import gigpo
from agentrl.trainer.algorithms.advantages.reinforce import reinforce
from agentrl.trainer.algorithms.kl import PENALTIES
from agentrl.trainer.algorithms.kl_reward import TERMS, KlPenalty, with_penalties
from agentrl.trainer.config import KlConfig
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment

LOGITS = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64, requires_grad=True)
REFERENCE = torch.log(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64))


def logprobs() -> Tensor:
    return torch.log_softmax(LOGITS, 0)


def gradient(value: Tensor) -> Tensor:
    return torch.autograd.grad(value, LOGITS)[0]


def to_reference() -> Tensor:
    return (logprobs().exp() * (logprobs() - REFERENCE)).sum()


def from_reference() -> Tensor:
    return (REFERENCE.exp() * (REFERENCE - logprobs())).sum()


def test_the_mean_over_samples_is_the_divergence() -> None:
    probs, meant = logprobs().exp().detach().numpy(), float(to_reference().detach())
    found = {kind: float(probs @ terms(log_ratio())) for kind, terms in TERMS.items()}
    assert found["k1"] == pytest.approx(meant)
    assert found["k3"] == pytest.approx(meant)
    assert found["k2"] == pytest.approx(meant, rel=0.3)


def log_ratio() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return (logprobs() - REFERENCE).detach().numpy()


@pytest.mark.parametrize("kind", PENALTIES)
def test_loss_and_reward_mean_the_same_by_a_name(kind: str) -> None:
    ours = PENALTIES[kind](logprobs(), REFERENCE).detach().numpy()
    assert TERMS[kind](log_ratio()) == pytest.approx(ours, rel=1e-12)


@pytest.mark.parametrize(("kind", "meant"), [("k2", to_reference), ("k3", from_reference)])
def test_the_gradient_in_the_loss(kind: str, meant: Callable[[], Tensor]) -> None:
    """The samples stay as they are: only the penalty of each is moved."""
    probs = logprobs().exp().detach()
    got = gradient((probs * PENALTIES[kind](logprobs(), REFERENCE)).sum())
    torch.testing.assert_close(got, gradient(meant()))


def test_the_gradient_in_the_reward() -> None:
    """Rewards stay as they are: only how likely each sample is moves."""
    got = {
        kind: gradient((logprobs().exp() * torch.from_numpy(terms(log_ratio()))).sum())
        for kind, terms in TERMS.items()
    }
    torch.testing.assert_close(got["k1"], gradient(to_reference()))
    torch.testing.assert_close(got["k3"], gradient(to_reference()) - gradient(from_reference()))


def two_turns(policy: list[float] | None = None) -> Batch:
    """One episode of two turns (tokens 2 and 3, then 4) for each of two members."""
    parts = [segment([1], [([2, 3], [9]), ([4], [])], seed) for seed in (0, 1)]
    batch = batch_of(parts, turn_rewards=[(0.5, 1.0), (0.0, 0.0)])
    penalties = np.array([0.1, 0.2, 0.3, 0.0, 0.0, 0.4])
    reference_N = batch.logprobs_N.copy()
    reference_N[batch.mask_N] -= penalties.astype(np.float32)
    return replace(batch, rewards_E=np.array([1.5, 0.0]), reference_N=reference_N)


def test_each_kind_of_estimator_gets_the_penalty_in_the_reward() -> None:
    batch = with_penalties(two_turns(), "k1", 2.0)
    assert batch.rewards_E == pytest.approx([1.5 - 1.2, -0.8], abs=1e-5)
    assert batch.token_rewards_N is not None
    assert batch.token_rewards_N[~batch.mask_N].tolist() == [0.0] * 4
    # By episodes: the sum.
    assert reinforce(batch)[batch.mask_N] == pytest.approx([0.3] * 3 + [-0.8] * 3, abs=1e-5)
    # By tokens: each where it falls, what follows is the rest.
    valued = replace(batch, values_N=np.zeros(batch.num_tokens, np.float32))
    sums_K = np.array([0.3, 0.5, 0.4, -0.8, -0.8, -0.8])
    got = gae(valued, decay=1.0, scale_by_std=False)[batch.mask_N]
    assert got == pytest.approx(sums_K - sums_K.mean(), abs=1e-5)
    # By turns: those of a turn together (0.5 - 0.6 against 0, then 1 - 0.6 against -0.8).
    keyed = replace(batch, keys_U=("a", "b", "a", "b"))
    steps = gigpo(keyed, discount=0.0, scale_by_std=False)[batch.mask_N]
    whole = [0.55, 0.55, 0.55, -0.55, -0.55, -0.55]
    apart = [-0.05, -0.05, 0.6, 0.05, 0.05, -0.6]
    assert steps == pytest.approx(np.add(whole, apart), abs=1e-5)


def test_what_engine_and_trainer_compute_otherwise_is_no_divergence() -> None:
    batch = two_turns()
    assert batch.reference_N is not None
    batch = replace(batch, proximal_N=batch.reference_N, rewards_E=np.array([1.0, 1.0]))
    assert with_penalties(batch, "k1", 5.0).rewards_E.tolist() == [1.0, 1.0]


def test_a_divergence_of_the_whole_vocabulary_is_taken_as_it_is() -> None:
    batch = two_turns()
    found = np.where(batch.mask_N, np.float32(0.25), 0).astype(np.float32)
    got = with_penalties(replace(batch, divergence_N=found), "exact", 2.0)
    assert got.rewards_E.tolist() == [0.0, -1.5]
    rejecting = replace(batch, divergence_N=found, mask_N=np.zeros_like(batch.mask_N))
    assert with_penalties(rejecting, "exact", 2.0).rewards_E.tolist() == batch.rewards_E.tolist()
    with pytest.raises(RunError, match="no divergences"):
        with_penalties(batch, "exact", 2.0)
    with pytest.raises(RunError, match="no reference"):
        with_penalties(replace(batch, reference_N=None), "k1", 2.0)


def test_the_coefficient_goes_towards_the_target_and_on_from_its_state() -> None:
    batch = two_turns()
    mean = float(TERMS["k3"](np.array([0.1, 0.2, 0.3, 0.0, 0.0, 0.4])).mean())
    config = KlConfig(coef=0.5, target=mean / 1.1, horizon=4)  # 10 % too much
    penalty = KlPenalty(config)
    assert penalty(batch).kl_coef == 0.5
    assert penalty.divergence == pytest.approx(mean)
    state = penalty.state()
    assert penalty(batch).kl_coef == pytest.approx(0.5 * (1 + 0.1 / 4), rel=1e-4)
    other = KlPenalty(config)
    other.load(state)
    assert other(batch).kl_coef == state
    assert other.state() == penalty.state()
    far = KlPenalty(KlConfig(coef=0.5, target=mean / 100, horizon=4))
    far(batch)
    assert far.state() == pytest.approx(0.5 * 1.05)  # an error of more than 20 % counts as 20 %
    near = KlPenalty(KlConfig(coef=0.5, target=100.0, horizon=4))
    near(batch)
    assert near.state() == pytest.approx(0.5 * 0.95)


def test_a_coefficient_without_a_target_stays() -> None:
    penalty = KlPenalty(KlConfig(coef=0.5, where="reward", kind="k1"))
    for _ in range(3):
        assert penalty(two_turns()).kl_coef == 0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "k1"}, "kl.kind: got k1 with trainer.kl.where loss, where it has no gradient"),
        ({"horizon": 3.0}, "kl.horizon: got 3 without trainer.kl.target; set that too"),
    ],
)
def test_what_does_nothing_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KlConfig.model_validate({"coef": 0.1, **settings}).check()
    KlConfig(coef=0.1, kind="k1", where="reward").check()
