"""One update: against the slow reference, for any split; what is refused; what is skipped."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import ctypes
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from agentrl.errors import ConfigError, RecordMismatch, RunError
from agentrl.tokens import TokenRecord, seal
from agentrl.trainer import ClipConfig, KlConfig, RatioBandConfig, StepStats, TrainerConfig
from agentrl.trainer import trainer as module
from agentrl.trainer.algorithms.corrections import CheckedCorrection
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch, Json, StopReason
from tests.unit.trainer.batches import (
    VOCAB,
    batch_of,
    on_policy,
    plain_logprobs,
    plain_loss,
    random_segments,
    segment,
    tiny_model,
)

WIDE = RatioBandConfig(mean=1e9, max=1e9)
LENGTHS = (20, 7, 19, 3, 18, 33, 4, 4)


def trained(batch: Batch) -> Tensor:
    return torch.from_numpy(batch.mask_N)


def gradients(model: LlamaForCausalLM, batch: Batch, config: TrainerConfig) -> dict[str, Tensor]:
    """What the optimizer gets, caught just before its step."""
    caught: dict[str, Tensor] = {}
    trainer = LocalTrainer(model, config, total_steps=10)

    def catch(*_: object) -> None:
        named = model.named_parameters()
        caught.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    trainer.optimizer.register_step_pre_hook(catch)
    trainer.update(batch)
    return caught


def reference_gradients(
    model: LlamaForCausalLM, batch: Batch, low: float, high: float
) -> dict[str, Tensor]:
    """Those of `plain_loss`."""
    loss = plain_loss(model, batch, low, high)
    model.zero_grad()
    torch.autograd.backward(loss)
    result = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return result


@pytest.mark.parametrize("token_budget", [1, 25, 60, 10_000])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (7, 2, 5, 0, 6, 1, 4, 3)])
def test_gradient_is_that_of_the_unsplit_batch(token_budget: int, order: tuple[int, ...]) -> None:
    segments = random_segments(LENGTHS)
    advantages = (1.0, -0.5, 0.3, 0.0, -2.0, 0.7, 1.5, -1.0)
    weights = (1.0, 0.5, 1.0, 1.0, 0.25, 1.0, 0.0, 2.0)
    batch = batch_of(
        [segments[i] for i in order],
        advantages=[advantages[i] for i in order],
        weights=[weights[i] for i in order],
        temperature=0.8,
    )
    model = tiny_model(dtype=torch.float64)
    expected = reference_gradients(model, batch, low=0.2, high=0.3)
    config = TrainerConfig(
        token_budget=token_budget,
        clip=ClipConfig(low=0.2, high=0.3),
        max_grad_norm=1e9,
        ratio_band=WIDE,
    )
    got = gradients(model, batch, config)
    assert got.keys() == expected.keys()
    for name, grad in got.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("where", ["in the gradient", "in the optimizer"])
def test_an_update_is_given_up_before_it_changes_anything(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        there.set()
        assert go_on.wait(20)

    def loss(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
        if where == "in the gradient" and np.shares_memory(tokens.batch.ids_N, batch.ids_N):
            wait()
        return -(tokens.weights_K * tokens.advantages_K * logprobs_K).sum(), {}

    model = tiny_model()
    before = [p.detach().clone() for p in model.parameters()]
    batch = on_policy(model, random_segments((12, 9)), advantages=(1, -1))
    config = TrainerConfig(loss="<loss>", token_budget=1)
    trainer = LocalTrainer(model, config, total_steps=1, loss=make_loss(config, loss))
    if where == "in the optimizer":
        trainer.optimizer.register_step_pre_hook(wait)
    failed: list[str] = []

    def update() -> None:
        try:
            trainer.update(batch)
        except RunError as error:
            failed.append(str(error))

    thread = threading.Thread(target=update)
    thread.start()
    assert there.wait(20)
    monkeypatch.setattr(module, "_END_S", 0.0)
    is_whole = trainer.give_up()
    go_on.set()
    thread.join(20)
    assert is_whole == (where == "in the gradient")
    assert failed == (["the update was given up; resume the run"] if is_whole else [])
    assert is_whole == all(map(torch.equal, before, model.parameters()))
    assert trainer.step == (0 if is_whole else 1)


def test_an_update_in_a_new_thread_uses_as_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    gomp = ctypes.CDLL(next(name for name in mapped if "libgomp" in name))
    found: list[int] = []

    def count(_: object) -> None:
        found.append(gomp.omp_get_max_threads())

    trainer = LocalTrainer(tiny_model(), TrainerConfig(), total_steps=1)
    monkeypatch.setattr(trainer, "_update_policy", count)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        thread = threading.Thread(target=trainer.update_share, args=(None,))
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert found == [before + 1]


def test_a_loss_that_acts_on_idle_rows_gets_them() -> None:
    def surprise(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
        return (tokens.weights_K * logprobs_K).sum(), {"logprob": logprobs_K.sum()}

    model = tiny_model()
    batch = on_policy(model, random_segments((12, 9)), advantages=(0, 0))
    config = TrainerConfig(loss="<surprise>")
    stats = LocalTrainer(model, config, total_steps=1, loss=make_loss(config, surprise)).update(
        batch
    )
    assert stats.skipped is None
    assert stats.grad_norm > 0
    assert stats.loss_statistics["logprob"] == pytest.approx(-stats.entropy)
    idle = LocalTrainer(tiny_model(), TrainerConfig(), total_steps=1).update(batch)
    assert idle.skipped == "every advantage is 0, as in groups of equal rewards"
    assert idle.loss_statistics == {"clip_fraction": 0.0}


def test_on_policy_update_reports_a_ratio_of_one_and_learns() -> None:
    model = tiny_model()
    segments = random_segments((12, 9, 15, 11))
    batch = on_policy(model, segments, advantages=(1, -1, 1, -1))
    before = plain_logprobs(model, batch).detach()
    stats = LocalTrainer(model, TrainerConfig(lr=1e-2), total_steps=1).update(batch)
    assert isinstance(stats, StepStats)
    assert stats.skipped is None
    assert stats.step == 1
    assert stats.ratio_mean == pytest.approx(1, abs=1e-5)
    assert stats.gap_max < 1e-4
    assert stats.num_verified == stats.num_trained == batch.num_trained
    assert stats.verified_share == 1
    assert stats.entropy == pytest.approx(-before[trained(batch)].mean().item(), rel=1e-5)
    change = (plain_logprobs(model, batch).detach() - before).numpy()
    assert batch.advantages_N is not None
    assert (change * batch.advantages_N).sum() > 0


def test_the_result_does_not_depend_on_idle_rows() -> None:
    """Rows without an advantage have no gradient and still count, also in the statistics."""
    model = tiny_model()
    segments = random_segments((12, 9, 15, 11))
    batch = on_policy(model, segments, advantages=(1, 0, 0, -1))
    backward: list[int] = []

    def count(*_: object) -> None:
        backward.append(1)

    model.model.norm.register_full_backward_hook(count)
    config = TrainerConfig(token_budget=1, max_grad_norm=1e9)
    got = gradients(model, batch, config)
    expected = reference_gradients(tiny_model(), batch, low=0.2, high=0.2)
    assert len(backward) == 2
    for name, grad in got.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)


def test_supervised_update_is_cross_entropy_and_lowers_it() -> None:
    model = tiny_model()
    batch = batch_of(random_segments((12, 9, 15, 11)))
    expected = -plain_logprobs(model, batch)[trained(batch)].mean().item()
    trainer = LocalTrainer(model, TrainerConfig(lr=1e-2, token_budget=20), total_steps=20)
    losses = [trainer.supervised_update(batch).loss for _ in range(20)]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.step == 20


def test_batches_of_lengths_ten_and_two_weigh_by_tokens() -> None:
    """Mean of means would weigh the short row's tokens five times as much."""
    model = tiny_model(dtype=torch.float64)
    batch = batch_of([segment([1], [(range(10), [])]), segment([1], [([3, 4], [])])])
    trainer = LocalTrainer(model, TrainerConfig(token_budget=1), total_steps=1)
    expected = -plain_logprobs(model, batch)[trained(batch)].mean().item()
    assert trainer.supervised_update(batch).loss == pytest.approx(expected, rel=1e-6)


def unchanged(trainer: LocalTrainer, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(t, before[n]) for n, t in trainer.weights().named_tensors())


def snapshot(trainer: LocalTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights().named_tensors()}


def test_nothing_to_train_is_zero_and_says_why() -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(weight_decay=0.1), total_steps=5)
    before = snapshot(trainer)
    weightless = batch_of(random_segments((9, 12)), advantages=(1, -1), weights=(0, 0))
    stats = trainer.update(weightless)
    assert (stats.loss, stats.grad_norm, stats.step) == (0, 0, 0)
    assert stats.skipped is not None
    assert "token_mean gives every trained token of the batch the weight 0" in stats.skipped
    equal = on_policy(trainer_model(trainer), random_segments((9, 12)), advantages=(0, 0))
    stats = trainer.update(equal)
    assert (stats.loss, stats.step) == (0, 0)
    assert stats.skipped is not None
    assert "every advantage is 0" in stats.skipped
    assert stats.entropy > 0
    assert stats.gap_max < 1e-4
    assert unchanged(trainer, before)


@pytest.mark.parametrize(("factor", "key"), [(None, "normalise token_mean"), (0, "correct none")])
def test_what_weighs_nothing_is_not_blamed_on_rewards(factor: float | None, key: str) -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(), total_steps=5)
    batch = on_policy(trainer_model(trainer), random_segments((9, 12)), advantages=(1, -1))
    assert batch.weights_N is not None
    nothing_N = 0 * batch.weights_N
    if factor is not None:
        batch = replace(batch, factors_N=nothing_N, proximal_N=batch.logprobs_N)
    stats = trainer.update(replace(batch, weights_N=nothing_N))
    assert stats.skipped == f"trainer.{key} gives every trained token of the batch the weight 0"
    equal = replace(batch, weights_N=nothing_N, advantages_N=nothing_N)
    assert trainer.update(equal).skipped == "every advantage is 0, as in groups of equal rewards"


def trainer_model(trainer: LocalTrainer) -> LlamaForCausalLM:
    assert isinstance(trainer.model, LlamaForCausalLM)
    return trainer.model


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone() -> None:
    model = tiny_model()
    trainer = LocalTrainer(model, TrainerConfig(max_skipped_steps=3), total_steps=9)
    batch = on_policy(model, random_segments((9, 12)), advantages=(1, -1))
    trainer.update(batch)
    before = snapshot(trainer)
    poison = model.model.norm.register_full_backward_hook(
        lambda _, grads, __: tuple(g * float("nan") for g in grads)
    )
    for count in (1, 2):
        stats = trainer.update(batch)
        assert stats.skipped is not None
        assert "not finite" in stats.skipped
        assert (trainer.num_skipped, stats.step) == (count, 1)
    poison.remove()
    assert unchanged(trainer, before)
    assert trainer.update(batch).skipped is None
    model.model.norm.register_full_backward_hook(
        lambda _, grads, __: tuple(g * float("inf") for g in grads)
    )
    for _ in range(2):
        assert trainer.update(batch).skipped is not None
    with pytest.raises(RunError, match="for 3 updates in a row"):
        trainer.update(batch)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("field", ["ids_N", "mask_N", "logprobs_N", "versions_N"])
def test_a_record_that_changed_is_refused(field: str) -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(ratio_band=WIDE), total_steps=1)
    batch = batch_of(random_segments((9, 12)), advantages=(1, -1))
    before = snapshot(trainer)
    values = getattr(batch, field).copy()
    where = int(np.flatnonzero(batch.mask_N)[-1])
    values[where] = not values[where] if field == "mask_N" else values[where] + 1
    with pytest.raises(RecordMismatch, match="episode-1: token"):
        trainer.update(replace(batch, **{field: values}))
    with pytest.raises(RecordMismatch, match="episode-1: token"):
        trainer.supervised_update(replace(batch, **{field: values}))
    assert unchanged(trainer, before)


def test_the_first_update_must_be_on_policy() -> None:
    model = tiny_model()
    trainer = LocalTrainer(model, TrainerConfig(), total_steps=2)
    before = snapshot(trainer)
    batch = on_policy(model, random_segments((9, 12)), advantages=(1, -1))
    with pytest.raises(RunError, match="before the first update"):
        trainer.update(replace(batch, temperature=0.5))
    assert unchanged(trainer, before)
    trainer.update(batch)
    assert trainer.update(replace(batch, temperature=0.5)).ratio_deviation_mean > 0.05


def test_a_ratio_beyond_every_number_does_not_slip_past_the_gate() -> None:
    model = tiny_model()
    record = TokenRecord(VOCAB)
    record.append_prompt([1, 2, 3])
    record.append_sampled(seal([4, 5], [-2000.0, -3.0], [0, 0], StopReason.STOP))
    trainer = LocalTrainer(model, TrainerConfig(), total_steps=1)
    before = snapshot(trainer)
    with pytest.raises(RunError, match=r"before the first update .* mean inf"):
        trainer.update(batch_of([record.close()], advantages=[1.0]))
    assert unchanged(trainer, before)


def test_the_penalty_pulls_back_to_the_starting_weights() -> None:
    def drift(coef: float) -> float:
        model = tiny_model()
        batch = on_policy(model, random_segments((9, 12)), advantages=(1, -1))
        before = plain_logprobs(model, batch).detach()
        config = TrainerConfig(lr=1e-3, kl=KlConfig(coef=coef), clip=ClipConfig(high=9, low=1))
        trainer = LocalTrainer(model, config, total_steps=9)
        if coef:
            with pytest.raises(RunError, match="has no logprobs of the reference; let Trainer"):
                trainer.update(batch)
            batch = trainer.with_outputs(batch, ["reference"])
        stats = [trainer.update(batch) for _ in range(9)]
        assert stats[0].kl == pytest.approx(0, abs=1e-6)
        assert (stats[-1].kl > 1e-4) == (coef > 0)
        return float((plain_logprobs(model, batch).detach() - before).abs().mean())

    assert drift(10.0) < 0.5 * drift(0.0)


def test_proximal_logprobs_are_those_of_the_weights_as_they_are() -> None:
    model = tiny_model()
    trainer = LocalTrainer(model, TrainerConfig(lr=1e-2, token_budget=20), total_steps=2)
    batch = on_policy(model, random_segments((12, 9, 15)), advantages=(1, -1, 1))
    proximal_N = trainer.with_outputs(batch, ["proximal"]).proximal_N
    assert proximal_N is not None
    assert proximal_N == pytest.approx(batch.logprobs_N, abs=1e-5)
    trainer.update(batch)
    proximal_N = trainer.with_outputs(batch, ["proximal"]).proximal_N
    assert proximal_N is not None
    assert np.abs(proximal_N - batch.logprobs_N).max() > 1e-3
    assert proximal_N == pytest.approx(plain_logprobs(model, batch).detach().numpy(), abs=1e-5)


def test_what_a_correction_rejects_is_not_trained_and_still_verified() -> None:
    def reject(batch: Batch) -> Batch:
        kept_N = batch.mask_N.copy()
        kept_N[np.flatnonzero(kept_N)[::2]] = False
        return replace(batch, mask_N=kept_N, factors_N=kept_N * np.float32(0.5))

    class Bonus:
        def __call__(self, batch: Batch) -> Batch:
            return replace(batch, rewards_E=batch.rewards_E + 2)

        def state(self) -> Json:
            return None

        def load(self, state: Json) -> None:
            raise AssertionError(state)

    model = tiny_model()
    config = TrainerConfig(estimator="reinforce")
    batch = on_policy(model, random_segments((12, 9, 15)))
    trainer = LocalTrainer(model, config, total_steps=2)
    recipe = replace(
        make_recipe(config),
        correction=CheckedCorrection("correction half", reject),
        shapings={"bonus": Bonus()},
        needs=frozenset({"proximal"}),
    )
    ready = recipe.prepare(batch, trainer)
    assert ready.advantages_N is not None
    assert ready.weights_N is not None
    assert set(ready.advantages_N[ready.mask_N]) == {2.0}
    assert ready.weights_N.sum() == pytest.approx(0.5)
    stats = trainer.update(ready)
    assert stats.num_trained == stats.num_verified == reject(batch).num_trained
    assert stats.loss == pytest.approx(-1, abs=1e-4)
    assert ready.rejected_N is not None
    ready.rejected_N[np.flatnonzero(ready.rejected_N)[0]] = False
    with pytest.raises(RecordMismatch, match="episode-0: token"):
        trainer.update(ready)


def test_gradients_are_clipped_and_the_rate_follows_the_schedule() -> None:
    model = tiny_model()
    batch = on_policy(model, random_segments((9, 12)), advantages=(1, -1))
    config = TrainerConfig(lr=1e-6, warmup_steps=2, schedule="linear", max_grad_norm=1e-3)
    trainer = LocalTrainer(model, config, total_steps=4)
    norms: list[float] = []

    def measure(*_: object) -> None:
        squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
        norms.append(float(sum(squares)) ** 0.5)

    trainer.optimizer.register_step_pre_hook(measure)
    rates = [trainer.update(batch).lr for _ in range(4)]
    assert rates == pytest.approx([5e-7, 1e-6, 1e-6, 5e-7])
    assert norms == pytest.approx([1e-3] * 4, rel=1e-3)


def test_dropout_is_refused() -> None:
    model = tiny_model()
    model.add_module("extra", nn.Dropout(0.1))
    with pytest.raises(ConfigError, match=r"extra\.p=0\.1"):
        LocalTrainer(model, TrainerConfig(), total_steps=1)
    model = tiny_model()
    model.config.attention_dropout = 0.2
    with pytest.raises(ConfigError, match=r"config\.attention_dropout=0\.2"):
        LocalTrainer(model, TrainerConfig(), total_steps=1)


def test_low_precision_masters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected torch\.float32"):
        LocalTrainer(tiny_model(dtype=torch.bfloat16), TrainerConfig(), total_steps=1)


def test_batches_that_cannot_be_trained_on_are_refused() -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(ratio_band=WIDE), total_steps=1)
    batch = batch_of(random_segments((9, 12)), advantages=(1, -1))
    with pytest.raises(RunError, match="has no advantages"):
        trainer.update(replace(batch, advantages_N=None))
    with pytest.raises(RunError, match=r"temperature 0\.0, expected above 0"):
        trainer.update(replace(batch, temperature=0.0))
    assert batch.advantages_N is not None
    batch.advantages_N[3] = float("nan")
    with pytest.raises(RunError, match="gave nan for token 3"):
        trainer.update(batch)


def test_tied_weights_are_named_once() -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(), total_steps=1)
    names = [name for name, _ in trainer.weights().named_tensors()]
    assert len(names) == len(set(names))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert not any(t.requires_grad for _, t in trainer.weights().named_tensors())


def test_rows_longer_than_the_budget_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    config = TrainerConfig(token_budget=8, ratio_band=RatioBandConfig(mean=1e9, max=1e9))
    trainer = LocalTrainer(tiny_model(), config, total_steps=3)
    for lengths in ((5, 6), (12, 20), (25, 12)):
        trainer.update(batch_of(random_segments(lengths, seed=0), advantages=(1, -1)))
    (said,) = (record.getMessage() for record in caplog.records)
    assert re.match(r"a row has \d+ tokens, more than the 8 of a micro-batch", said)
