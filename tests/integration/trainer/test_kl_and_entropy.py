"""What penalty and bonus add to an update, against autograd of the dense softmax."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from agentrl.errors import ConfigError
from agentrl.trainer import KlConfig, RatioBandConfig, StepStats, TrainerConfig
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, plain_logprobs, random_segments, tiny_model
from tests.unit.trainer.test_head_statistics import dense


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def config(kl: KlConfig, *, entropy_coef: float = 0.0, token_budget: int = 25) -> TrainerConfig:
    return TrainerConfig(
        kl=kl,
        entropy_coef=entropy_coef,
        token_budget=token_budget,
        max_grad_norm=1e9,
        ratio_band=RatioBandConfig(mean=1e9, max=1e9),
    )


def idle_batch() -> Batch:
    """One without advantages, so that penalty and bonus are all that acts."""
    return batch_of(random_segments((20, 7, 19)), advantages=(0, 0, 0), temperature=0.8)


def updated(
    settings: TrainerConfig, other: LlamaForCausalLM, batch: Batch
) -> tuple[StepStats, dict[str, Tensor]]:
    """The update, and the gradient that its step was taken with."""
    trainer = LocalTrainer(tiny_model(), settings, total_steps=1, reference=other)
    caught: dict[str, Tensor] = {}

    def catch(*_: object) -> None:
        named = trainer.model.named_parameters()
        caught.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    trainer.optimizer.register_step_pre_hook(catch)
    if settings.kl.coef and settings.kl.kind != "exact":
        batch = trainer.with_outputs(batch, ["reference"])
    return trainer.update(batch), caught


@pytest.mark.parametrize(
    ("kl", "entropy_coef", "kl_coef"),
    [
        (KlConfig(), 0.3, None),
        (KlConfig(coef=0.5, kind="exact"), 0.0, None),
        (KlConfig(coef=0.5, kind="exact"), 0.3, 2.0),
    ],
)
def test_gradients_are_those_of_the_dense_softmax(
    kl: KlConfig, entropy_coef: float, kl_coef: float | None
) -> None:
    other, plain = tiny_model(seed=1), tiny_model()
    batch = replace(idle_batch(), kl_coef=kl_coef)
    stats, gradients = updated(config(kl, entropy_coef=entropy_coef), other, batch)
    entropy_N, divergence_N = dense(plain, other, batch)
    entropy, divergence = (float(a_N.detach().sum()) for a_N in (entropy_N, divergence_N))
    coef = kl.coef if kl_coef is None else kl_coef
    expected = (coef * divergence_N - entropy_coef * entropy_N).sum() / batch.num_trained
    torch.autograd.backward(expected)
    assert stats.loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert stats.entropy_exact == pytest.approx(entropy / batch.num_trained)
    if kl.coef:
        assert stats.kl == pytest.approx(divergence / batch.num_trained, rel=1e-5)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_nobody_asks_for_entropies_by_default() -> None:
    trainer = LocalTrainer(tiny_model(), config(KlConfig()), total_steps=1)
    batch = batch_of(random_segments((20, 7)), advantages=(1, -1))
    stats = trainer.update(batch)
    assert stats.entropy_exact is None
    assert stats.entropy > 0


def test_a_penalty_in_the_reward_is_none_in_the_loss() -> None:
    settings = config(KlConfig(coef=0.5, kind="k1", where="reward"))
    stats, gradients = updated(settings, tiny_model(seed=1), idle_batch())
    assert stats.skipped == "every advantage is 0, as in groups of equal rewards"
    assert not gradients
    assert stats.kl > 0.1  # measured all the same


def test_divergences_of_the_whole_vocabulary_come_before_the_update() -> None:
    settings = config(KlConfig(coef=0.5, kind="exact", where="reward"))
    other, plain, batch = tiny_model(seed=1), tiny_model(), idle_batch()
    trainer = LocalTrainer(tiny_model(), settings, total_steps=1, reference=other)
    got = trainer.with_outputs(batch, ["reference"])
    assert got.divergence_N is not None
    assert got.reference_N is not None
    with torch.no_grad():
        expected = dense(plain, other, batch)[1].numpy()
        logprobs = plain_logprobs(other, batch).numpy()
    np.testing.assert_allclose(got.divergence_N, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.reference_N, logprobs, rtol=1e-4, atol=1e-5)


def test_a_bonus_keeps_the_entropy_up() -> None:
    """Two runs that differ in the bonus alone, over the same tokens."""

    def trained(coef: float) -> float:
        settings = config(KlConfig(), entropy_coef=coef).model_copy(update={"lr": 3e-3})
        trainer = LocalTrainer(tiny_model(), settings, total_steps=30)
        batch = batch_of(random_segments((20, 7, 19)), advantages=(1, 1, 1))
        for _ in range(15):
            trainer.update(batch)
        with torch.no_grad():
            entropy_N = dense(trainer.model, trainer.model, batch)[0]
        return float(entropy_N.sum()) / batch.num_trained

    assert trained(1.0) > trained(0.0) + 0.1


def test_k1_in_the_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match="no gradient on average"):
        updated(config(KlConfig(coef=0.1, kind="k1")), tiny_model(seed=1), idle_batch())
