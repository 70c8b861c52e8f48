"""Entropies and divergences of the head pass against autograd of a dense softmax."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import math

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.trainer import logprobs as module
from agentrl.trainer.logprobs import policy_scores, reference_inputs
from agentrl.trainer.packing import pack
from agentrl.types import Batch
from tests.unit.trainer.batches import VOCAB, batch_of, random_segments, segment, tiny_model


def some_batch() -> Batch:
    """Rows of a common prompt, so that one position predicts several trained tokens."""
    shared = [segment([4, 5], [([6, 8], [1]), ([2], [])]), segment([4, 5], [([7, 3], [])], 1)]
    return batch_of([*shared, *random_segments((20, 9))], temperature=0.7)


def dense(model: PreTrainedModel, other: PreTrainedModel, batch: Batch) -> Tensor:
    """[2, N] Entropies and divergences by the whole softmax, 0 where nothing is trained."""
    found = torch.zeros(2, batch.num_tokens, dtype=model.dtype)
    for r in range(batch.num_rows):
        ids = torch.from_numpy(batch.ids_N[batch.row(r)]).long()[None]
        ours, theirs = (
            torch.log_softmax(m(input_ids=ids).logits[0, :-1] / batch.temperature, -1)
            for m in (model, other)
        )
        start = batch.row(r).start + 1
        for t in range(len(ours)):
            if batch.mask_N[start + t]:
                possible = ours[t] > -math.inf
                p, log_p, log_q = (x[t][possible] for x in (ours.exp(), ours, theirs.detach()))
                found[0, start + t] = -(p * log_p).sum()
                found[1, start + t] = (p * (log_p - log_q)).sum()
    return found


@pytest.mark.parametrize("kept", [0, 9, 1000])
@pytest.mark.parametrize("impossible", [False, True])
def test_equal_the_dense_softmax(
    kept: int, impossible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(dtype=torch.float64, bias=True)
    other = tiny_model(seed=1, dtype=torch.float64, bias=True)
    if impossible:  # an id that is in no row
        for each in (model, other):
            each.lm_head.bias.data[30] = -math.inf
    batch = some_batch()
    packed = pack(batch, range(batch.num_rows))
    expected = dense(model, other, batch)[:, packed.source_K]
    pull = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    parameters = [p for n, p in model.named_parameters() if n != "lm_head.bias"]
    wanted = torch.autograd.grad((pull * expected).sum(), parameters)

    monkeypatch.setattr(module, "PIECE_LOGITS", 4 * VOCAB)
    monkeypatch.setattr(module, "KEPT_LOGITS", kept * VOCAB)
    reference = reference_inputs(other, packed, batch.temperature)
    scores = policy_scores(model, packed, batch.temperature, reference=reference)
    torch.testing.assert_close(scores[2:], expected, rtol=1e-10, atol=1e-12)
    got = torch.autograd.grad((pull * scores[2:]).sum(), parameters)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_all_four_have_their_gradient_together() -> None:
    """What a loss of logprobs, entropy and divergence gives is the sum of what each gives."""
    model = tiny_model(dtype=torch.float64, tied=False)
    other = tiny_model(seed=1, dtype=torch.float64)
    batch = some_batch()
    packed = pack(batch, range(batch.num_rows))
    reference = reference_inputs(other, packed, batch.temperature)

    def gradient(*rows: int) -> Tensor:
        scores = policy_scores(model, packed, batch.temperature, reference=reference)
        found: Tensor = torch.autograd.grad(scores[list(rows)].sum(), model.lm_head.weight)[0]
        return found

    apart = torch.stack([gradient(row) for row in range(4)])
    assert apart.abs().amax((1, 2)).min() > 0.1
    torch.testing.assert_close(gradient(0, 1, 2, 3), apart.sum(0))


def test_a_model_does_not_diverge_from_itself() -> None:
    model = tiny_model()
    batch = some_batch()
    packed = pack(batch, range(batch.num_rows))
    reference = reference_inputs(model, packed, batch.temperature)
    scores = policy_scores(model, packed, batch.temperature, reference=reference)
    assert scores[3].abs().max() < 1e-6
    full = policy_scores(model, packed, batch.temperature, full=True)
    torch.testing.assert_close(full[:3], scores[:3])
    assert not full[3].any()


def test_what_nobody_asked_for_is_not_computed() -> None:
    batch = some_batch()
    packed = pack(batch, range(batch.num_rows))
    assert policy_scores(tiny_model(), packed, batch.temperature).shape[0] == 2
