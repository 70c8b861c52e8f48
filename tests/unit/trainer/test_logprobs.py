"""The packed pass against the model's own, one row at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch and transformers are typed in part only.

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from agentrl.errors import ConfigError
from agentrl.trainer import logprobs as module
from agentrl.trainer.attention import buckets
from agentrl.trainer.logprobs import (
    check_model,
    policy_logprobs,
    policy_scores,
    reference_inputs,
)
from agentrl.trainer.packing import pack
from agentrl.types import Batch
from tests.unit.trainer.batches import (
    VOCAB,
    batch_of,
    plain_logprobs,
    random_segments,
    segment,
    tiny_model,
)


def packed_logprobs(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    packed = pack(batch, range(batch.num_rows))
    result = torch.zeros(batch.num_tokens, dtype=model.dtype)
    result[torch.from_numpy(packed.source_K)] = policy_logprobs(model, packed, batch.temperature)
    return result


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("lengths", [(9, 9, 9), (20, 19, 8, 7, 3), (3,), (5, 40, 6, 40, 12)])
def test_equals_one_row_at_a_time(lengths: tuple[int, ...], temperature: float) -> None:
    model = tiny_model(dtype=torch.float64)
    batch = batch_of(random_segments(lengths), temperature=temperature)
    expected = plain_logprobs(model, batch)
    torch.testing.assert_close(packed_logprobs(model, batch), expected, rtol=1e-10, atol=1e-12)


def bigram_model() -> LlamaForCausalLM:
    """Logits of the next token depend on the current one only, by a table written by hand."""
    model = tiny_model(tied=False)
    table = torch.full((VOCAB, VOCAB), -20.0)
    for token in range(VOCAB):
        table[token, (token + 1) % VOCAB] = 0.0
        table[token, (token + 2) % VOCAB] = -1.0
    width = model.config.hidden_size
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        # The last norm makes a unit vector of `width` entries sqrt(width) long.
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB, width))
        model.lm_head.weight[:, :VOCAB] = table.T / width**0.5
    return model


def test_each_logprob_is_of_its_own_token() -> None:
    batch = batch_of([segment([4, 5], [([6, 8], [1]), ([2], [])])])
    got = packed_logprobs(bigram_model(), batch)
    norm = np.log(1 + np.exp(-1))
    expected = [0, 0, -norm, -1 - norm, 0, -norm]
    np.testing.assert_allclose(got.detach().numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("by", [0, -2, 1])
def test_a_shift_that_is_off_by_one_is_seen(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(targets: NDArray[np.int64]) -> NDArray[np.int64]:
        return targets + by

    monkeypatch.setattr("agentrl.trainer.packing.shift", wrong)
    batch = batch_of([segment([4, 5], [([6, 8], [1]), ([2], [])]), segment([4, 5, 6], [([7], [])])])
    try:
        got = packed_logprobs(bigram_model(), batch)
    except IndexError:
        return
    assert got.min() < -5


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of logits of each piece that is computed."""
    result: list[int] = []
    compute = module._compute_logprobs  # pyright: ignore[reportPrivateUsage]

    def count(*arguments: Any) -> Tensor:
        logprobs = compute(*arguments)
        result.append(logprobs.numel())
        return logprobs

    monkeypatch.setattr(module, "_compute_logprobs", count)
    return result


@pytest.mark.parametrize("kept", [0, 9])
def test_logits_exist_in_bounded_pieces(
    kept: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(dtype=torch.float64, bias=True)
    batch = batch_of(random_segments((20, 19, 8)), temperature=0.7)
    torch.autograd.backward(plain_logprobs(model, batch).sum())
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    monkeypatch.setattr(module, "PIECE_LOGITS", 4 * VOCAB)
    monkeypatch.setattr(module, "KEPT_LOGITS", kept * VOCAB)
    torch.autograd.backward(packed_logprobs(model, batch).sum())
    # Pieces that are not kept are computed again by backward; of nine kept two are whole pieces.
    assert max(sizes) <= 4 * VOCAB
    assert sum(sizes) == (2 * batch.num_trained - 8 * (kept > 0)) * VOCAB
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-10, atol=1e-12)


def test_the_head_computes_in_bfloat16_where_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same gradients from kept logits and from those that backward computes again."""
    model = tiny_model()
    packed = pack(batch_of(random_segments((20, 19, 8))), range(3))
    grads: list[Tensor] = []
    for kept in (10_000, 0):
        monkeypatch.setattr(module, "KEPT_LOGITS", kept)
        with torch.autocast("cpu", torch.bfloat16):
            total = policy_logprobs(model, packed, 1.0).sum()
        grads += torch.autograd.grad(total, model.lm_head.weight)
    torch.testing.assert_close(grads[0], grads[1], rtol=0.05, atol=0.05)


def growth_bytes(model: LlamaForCausalLM, batch: Batch, full: bool) -> int:
    """Most memory of a pass and its backward, above what there was before.

    With all of its sums the model is its own reference.
    """
    packed = pack(batch, range(batch.num_rows))
    other = reference_inputs(model, packed, 1.0) if full else None
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = memory_bytes("VmRSS")
    torch.autograd.backward(policy_scores(model, packed, 1.0, reference=other).sum())
    return memory_bytes("VmHWM") - before


def memory_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_memory_does_not_grow_with_the_vocabulary_times_the_tokens(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(vocab=65_536)
    monkeypatch.setattr(module, "KEPT_LOGITS", 2**23)
    growth_bytes(model, batch_of(random_segments([64] * 2)), full)  # torch's own, at its first use
    batch = batch_of(random_segments([64] * 64))
    logits_bytes = batch.num_trained * 65_536 * 4
    assert logits_bytes > 380 * 2**20
    # Two pieces of 32 MiB, two gradients of 8 MiB, and what is left of the rest of the model.
    assert growth_bytes(model, batch, full) < (256 if full else 160) * 2**20


def test_logits_are_computed_for_trained_tokens_only(sizes: list[int]) -> None:
    batch = batch_of(random_segments((20, 19, 8)))
    packed_logprobs(tiny_model(), batch)
    assert sum(sizes) == batch.num_trained * VOCAB < batch.num_tokens * VOCAB


def test_the_heads_gradient_is_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece has a relative error of 0.18 %; 75 added up in bfloat16 had 0.79 %, now 0.19 %."""
    model = tiny_model(dtype=torch.bfloat16, tied=False, bias=True)
    batch = batch_of(random_segments([40] * 75, seed=3))
    packed = pack(batch, range(batch.num_rows), share=False)
    states: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        states.append(output.detach())

    model.model.norm.register_forward_hook(keep)
    pull_K = torch.rand(len(packed.source_K), generator=torch.Generator().manual_seed(0))
    leaves = [model.lm_head.weight, model.lm_head.bias]

    def gradient(pieces: int) -> Tensor:
        size = -(-len(pull_K) // pieces)
        monkeypatch.setattr(module, "PIECE_LOGITS", size * VOCAB)
        scores_K = policy_scores(model, packed, 1.0)[0]
        found = torch.autograd.grad((pull_K * scores_K).sum(), leaves)
        return torch.cat([found[0].double(), found[1].double()[:, None]], 1)

    found = {pieces: gradient(pieces) for pieces in (1, 75)}
    hidden_KD = states[0].reshape(-1, 32)[torch.from_numpy(packed.predictors_K)].double()
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    logits_KV = hidden_KD @ exact[0].T + exact[1]
    targets_K = torch.from_numpy(packed.targets_K)
    scores_K = torch.log_softmax(logits_KV, -1)[torch.arange(len(targets_K)), targets_K]
    wanted = torch.autograd.grad((pull_K.double() * scores_K).sum(), exact)
    expected = torch.cat([wanted[0], wanted[1][:, None]], 1)
    size = float(torch.linalg.vector_norm(expected))
    errors = {p: float(torch.linalg.vector_norm(g - expected)) / size for p, g in found.items()}
    print(f"relative errors by number of pieces: {errors}")
    assert errors[75] < 1.5 * errors[1] < 0.006


def test_the_mean_over_the_vocabulary_has_its_gradient() -> None:
    model = tiny_model(dtype=torch.float64)
    batch = batch_of(random_segments((20, 8)), temperature=1.5)
    packed = pack(batch, [0, 1])
    uniform = policy_scores(model, packed, batch.temperature)[1].sum()
    got = torch.autograd.grad(uniform, model.lm_head.weight)[0]
    expected = torch.zeros(())
    for row in range(2):
        ids = torch.from_numpy(batch.ids_N[batch.row(row)]).long()
        logits = model(input_ids=ids[None]).logits[0, :-1] / batch.temperature
        trained = torch.from_numpy(batch.mask_N[batch.row(row)])[1:]
        expected = expected + torch.log_softmax(logits, -1).mean(-1)[trained].sum()
    torch.testing.assert_close(uniform, expected)
    torch.testing.assert_close(got, torch.autograd.grad(expected, model.lm_head.weight)[0])


def test_the_model_attends_as_before_afterwards() -> None:
    model = tiny_model()
    before = model.config._attn_implementation  # pyright: ignore[reportPrivateUsage]
    packed_logprobs(model, batch_of(random_segments((9,))))
    assert model.config._attn_implementation == before  # pyright: ignore[reportPrivateUsage]
    ids = torch.arange(6)[None]
    assert model(input_ids=ids).logits.shape == (1, 6, VOCAB)


def test_buckets_pad_little() -> None:
    lengths = np.array([60, 100, 5, 99, 60, 92])
    assert buckets(lengths) == [[1, 3, 5], [0, 4], [2]]


def test_a_model_whose_logits_are_changed_after_the_head_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model()
    plain = model.forward

    def scaled(**kwargs: Any) -> object:
        output = plain(**kwargs)
        assert output.logits is not None
        output.logits = output.logits * 2
        return output

    check_model(model, 512)
    monkeypatch.setattr(model, "forward", scaled)
    with pytest.raises(ConfigError, match="the trainer computes LlamaForCausalLM otherwise"):
        check_model(model, 512)
