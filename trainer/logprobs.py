"""The policy's logprobs of trained tokens, from one packed forward pass.

Logits are computed at the positions before trained tokens only, once for each position, in bounded
pieces of which a bounded number is kept for backward.

Suffixes: P packed tokens, K trained tokens, U positions that predict one, D hidden width, V
vocabulary.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.engine.local.demands import Heads, attending, measure_heads, text_config
from agentrl.engine.local.models.load import known_ids
from agentrl.engine.local.reference import (
    SHARED,
    ReferenceRow,
    reference_rows,
    refuse_difference,
)
from agentrl.engine.local.routing_replay import routed
from agentrl.errors import ConfigError
from agentrl.trainer.attention import PACKED_ATTENTION, AttentionPlan
from agentrl.trainer.fsdp import head_precision, in_pass, settle
from agentrl.trainer.packing import PackedRows, find_places
from agentrl.trainer.prefix_tree import pieces, tree
from agentrl.trainer.routing_replay import replayed

PIECE_LOGITS = 2**23
"""Logits that are in work at a time (32 MiB of float32)."""
KEPT_LOGITS = 2**26
"""Probabilities that are kept for backward (256 MiB); those of other pieces are computed again."""
Cuts = list[tuple[slice, slice]]


def policy_logprobs(model: PreTrainedModel, rows: PackedRows, temperature: float) -> Tensor:
    """[K] Natural logs of softmax(logits / temperature) at the trained tokens."""
    return policy_scores(model, rows, temperature)[0]


def policy_scores(model: PreTrainedModel, rows: PackedRows, temperature: float) -> Tensor:
    """[2, K] The logprobs of the trained tokens, and the mean logprob over the vocabulary there.

    The second is what a uniform target would score, for label smoothing.
    """
    return in_pass(model, lambda: _scores(model, rows, temperature))


def _scores(model: PreTrainedModel, rows: PackedRows, temperature: float) -> Tensor:
    with replayed(model, rows):
        hidden_PD = _hidden(model, rows)
    head = _find_head(model)
    predictors_U, at_K = np.unique(rows.predictors_K, return_inverse=True)
    places_U, places_K, targets_K = (
        torch.from_numpy(indices).to(model.device)
        for indices in (predictors_U, at_K, rows.targets_K)
    )
    ids = known_ids(model)
    weight_VD, bias_V = head.weight[:ids], getattr(head, "bias", None)
    bias_V = bias_V if bias_V is None else bias_V[:ids]
    cuts = _cuts(at_K, len(weight_VD))
    temperature = temperature / _logit_factor(model)
    with head_precision(model):
        scores: Tensor = _HeadScores.apply(  # type: ignore[no-untyped-call]  # torch's
            hidden_PD[places_U], weight_VD, bias_V, places_K, targets_K, cuts, temperature
        )
    return scores


def predicting_states(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    """[K, D] The last hidden states before the trained tokens."""
    return _hidden(model, rows)[torch.from_numpy(rows.predictors_K).to(model.device)]


def sequence_logprobs(
    model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """The logprob of each id but the first given those before it, by the model's own pass."""
    ids_T = torch.tensor(ids, device=model.device)
    with torch.no_grad():
        logits_TV = model(input_ids=ids_T[None]).logits[0, :-1, : known_ids(model)].float()
        logits_TV /= temperature
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(x) for x in logprobs_TV.gather(1, ids_T[1:, None])[:, 0]]


def check_model(model: PreTrainedModel, longest: int, *, low_precision: bool = False) -> None:
    """Hold this module's pass, in training, against the model's own code.

    Args:
        model: as it is trained.
        longest: most tokens of a row.
        low_precision: it computes in fewer bits than its weights have.

    Raises:
        ConfigError: they differ, as they do where logits are capped after the head.
    """
    _find_head(model)
    heads = measure_heads(model, longest)
    rows = reference_rows(model, longest)
    low = low_precision or model.dtype.itemsize < 4
    was_training = model.training
    model.train()
    with torch.no_grad():
        refuse_difference(
            "the trainer", model, rows, lambda r: _packed_logits(model, heads, r), low
        )
    model.train(was_training)
    settle(model)


def _packed_logits(
    model: PreTrainedModel, heads: Heads, rows: Sequence[ReferenceRow]
) -> list[Tensor]:
    lengths = [len(row) for row in rows]
    # Rows 0 and 1 begin alike.
    parts = pieces(lengths, [0, min(SHARED, *lengths[:2]), *[0] * (len(rows) - 2)])
    packed = tree(parts, max(lengths))
    sources = [(rows[part.first], slice(part.start, part.stop)) for part in parts]
    ids_P = torch.from_numpy(np.concatenate([row.ids_T[span] for row, span in sources]))
    positions_P = torch.from_numpy(np.concatenate([r.positions_T[span] for r, span in sources]))
    # Scores of experts may tie, so they go to those that the reference chose.
    experts = [
        torch.cat([row.experts[layer][span] for row, span in sources])
        for layer in range(len(rows[0].experts))
    ]
    layout = AttentionPlan(packed, model.device)
    with routed(model, experts) if experts else nullcontext():
        logits_PV = in_pass(
            model, lambda: _find_head(model)(_hidden_of(model, ids_P, positions_P, layout)).float()
        )
    logits_PV = logits_PV * _logit_factor(model)
    if layout.calls != heads.num_layers:
        raise ConfigError(
            f"{type(model).__name__} called the trainer's attention {layout.calls} times, expected "
            f"{heads.num_layers}; choose another model"
        )
    return [logits_PV[torch.from_numpy(p)] for p in find_places(parts, packed, lengths)]


def _hidden(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    ids_P, positions_P = torch.from_numpy(rows.ids_P), torch.from_numpy(rows.positions_P)
    return _hidden_of(model, ids_P, positions_P, AttentionPlan(rows.tree, model.device, rows.cut))


def _hidden_of(
    model: PreTrainedModel, ids_P: Tensor, positions_P: Tensor, layout: AttentionPlan
) -> Tensor:
    with attending(model, PACKED_ATTENTION):
        output = _find_backbone(model)(
            input_ids=ids_P[None].to(model.device),
            position_ids=positions_P[None].to(model.device),
            use_cache=False,
            layout=layout,
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _find_backbone(model: PreTrainedModel) -> nn.Module:
    """What gives the last hidden states; some models name it otherwise than they say."""
    body: nn.Module = model.base_model
    if body is model:
        body = model.get_decoder()  # type: ignore[no-untyped-call]  # transformers'
    return body


def _find_head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers'
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{type(model).__name__} has no linear output head; train a causal language model"
        )
    return head


def _logit_factor(model: PreTrainedModel) -> float:
    """By what the model multiplies the head's output; `check_model` shows if there is more to it.

    Cohere's configuration has a factor, Granite's a divisor.
    """
    config = text_config(model)
    factor = float(getattr(config, "logit_scale", None) or 1)
    return factor / float(getattr(config, "logits_scaling", None) or 1)


class _HeadScores(torch.autograd.Function):
    """`policy_scores` of hidden states [U, D]: `at_K` says which of them predicts a target.

    Of each piece of logits there is one copy, which becomes their gradient in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_UD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        at_K: Tensor,
        targets_K: Tensor,
        cuts: Cuts,
        temperature: float,
    ) -> Tensor:
        ctx.cuts, ctx.temperature = cuts, temperature
        ctx.kept = dict[int, Tensor]()
        scores: list[Tensor] = []
        room = KEPT_LOGITS
        for piece, (rows, mine) in enumerate(cuts):
            logprobs_UV = _compute_logprobs(hidden_UD[rows], weight_VD, bias_V, temperature)
            at, targets = at_K[mine] - rows.start, targets_K[mine]
            scores.append(torch.stack([logprobs_UV[at, targets], logprobs_UV.mean(1)[at]]))
            room -= logprobs_UV.numel()
            if any(ctx.needs_input_grad) and room >= 0:
                ctx.kept[piece] = logprobs_UV
        ctx.save_for_backward(hidden_UD, weight_VD, bias_V, at_K, targets_K)
        return torch.cat(scores, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_UD, weight_VD, bias_V, at_K, targets_K = ctx.saved_tensors
        given, hidden_UD = hidden_UD, hidden_UD.to(weight_VD.dtype)
        hidden_grad = torch.empty_like(hidden_UD)
        weight_grad = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        bias_grad = torch.zeros_like(bias_V) if ctx.needs_input_grad[2] else None
        for piece, (rows, mine) in enumerate(ctx.cuts):
            logprobs_UV = ctx.kept.pop(piece, None)
            if logprobs_UV is None:
                logprobs_UV = _compute_logprobs(hidden_UD[rows], weight_VD, bias_V, ctx.temperature)
            at, targets = at_K[mine] - rows.start, targets_K[mine]
            grad_UV = _logit_grad(logprobs_UV, grads[0][:, mine] / ctx.temperature, at, targets)
            grad_UV = grad_UV.to(weight_VD.dtype)
            torch.mm(grad_UV, weight_VD, out=hidden_grad[rows])
            if weight_grad is not None:
                weight_grad.addmm_(grad_UV.T, hidden_UD[rows])
            if bias_grad is not None:
                bias_grad += grad_UV.sum(0)
        return hidden_grad.to(given.dtype), weight_grad, bias_grad, None, None, None, None


def _cuts(at_K: NDArray[np.int64], vocab: int) -> Cuts:
    """Pieces of the U positions and, for each, the trained tokens that they predict."""
    size = max(1, PIECE_LOGITS // vocab)
    num = int(at_K[-1]) + 1 if len(at_K) else 0
    bounds = [*range(0, max(1, num), size), num]
    firsts = np.searchsorted(at_K, bounds).tolist()
    return [
        (slice(*rows), slice(*mine))
        for rows, mine in zip(pairwise(bounds), pairwise(firsts), strict=True)
    ]


def _compute_logprobs(
    hidden_UD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, temperature: float
) -> Tensor:
    logits_UV = nn.functional.linear(hidden_UD, weight_VD, bias_V)
    # At least float32, whatever the model computes in.
    logits_UV = logits_UV.to(torch.promote_types(logits_UV.dtype, torch.float32))
    if temperature != 1:
        logits_UV /= temperature
    return torch.log_softmax(logits_UV, dim=1, out=logits_UV)


def _logit_grad(logprobs_UV: Tensor, grads_2K: Tensor, at_K: Tensor, targets_K: Tensor) -> Tensor:
    """Of scores to logits, in the place of the logprobs."""
    total_U = logprobs_UV.new_zeros(len(logprobs_UV)).index_add_(0, at_K, grads_2K.sum(0))
    grad_UV = logprobs_UV.exp_().mul_(-total_U[:, None])
    grad_UV.index_put_((at_K, targets_K), grads_2K[0], accumulate=True)
    if grads_2K[1].any():
        uniform_U = torch.zeros_like(total_U).index_add_(0, at_K, grads_2K[1])
        grad_UV += uniform_U[:, None] / grad_UV.shape[1]
    return grad_UV
