"""The policy's logprobs of trained tokens, from one packed forward pass.

Logits are computed at the positions before trained tokens only, once for each position, in bounded
pieces of which a bounded number is kept for backward.

Suffixes: P packed tokens, K trained tokens, U positions that predict one, D hidden width, V
vocabulary.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch and transformers are typed in part only.

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
from agentrl.trainer.packing import PackedRows, find_places, pieces, tree
from agentrl.trainer.routing_replay import replayed

PIECE_LOGITS = 2**23
"""Logits that are in work at a time (32 MiB of float32); entropies and divergences take three more
arrays of that size."""
_IMPOSSIBLE = -1e30
"""Instead of a logprob of -inf: times its probability of 0 it is 0."""
KEPT_LOGITS = 2**26
"""Probabilities that are kept for backward (256 MiB); those of other pieces are computed again."""
Cuts = list[tuple[slice, slice]]


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """What the distributions of another model are computed from, as often as they are needed."""

    hidden_UD: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    temperature: float

    def logprobs(self, rows: slice) -> Tensor:
        """[U, V] Those of some of the positions."""
        hidden_UD = self.hidden_UD[rows].to(self.weight_VD.dtype)
        return _compute_logprobs(hidden_UD, self.weight_VD, self.bias_V, self.temperature)


def policy_logprobs(model: PreTrainedModel, rows: PackedRows, temperature: float) -> Tensor:
    """[K] Natural logs of softmax(logits / temperature) at the trained tokens."""
    return policy_scores(model, rows, temperature)[0]


def policy_scores(
    model: PreTrainedModel,
    rows: PackedRows,
    temperature: float,
    *,
    full: bool = False,
    reference: HeadInputs | None = None,
) -> Tensor:
    """[2, K] The logprobs of the trained tokens, and the mean logprob over the vocabulary there.

    The second is what a uniform target would score, for label smoothing. With `full` or a
    `reference` there are two more, [4, K]: the entropy of the distribution that each token was
    drawn from, and its KL divergence from the reference's (0 without one). They take some more
    passes over the logits.
    """
    full = full or reference is not None
    return in_pass(model, lambda: _score_rows(model, rows, temperature, full, reference))


def _score_rows(
    model: PreTrainedModel,
    rows: PackedRows,
    temperature: float,
    full: bool,
    reference: HeadInputs | None,
) -> Tensor:
    places_U, at_K = np.unique(rows.predictors_K, return_inverse=True)
    mine = _compute_head_inputs(model, rows, places_U, temperature)
    places_K, targets_K = (
        torch.from_numpy(indices).to(model.device) for indices in (at_K, rows.targets_K)
    )
    cuts = _cut_positions_by_logit_limit(at_K, len(mine.weight_VD))
    with head_precision(model):
        scores: Tensor = _HeadScores.apply(  # type: ignore[no-untyped-call]  # torch's
            mine.hidden_UD,
            mine.weight_VD,
            mine.bias_V,
            places_K,
            targets_K,
            cuts,
            mine.temperature,
            full,
            reference,
        )
    return scores


def reference_inputs(model: PreTrainedModel, rows: PackedRows, temperature: float) -> HeadInputs:
    """What the distributions of a frozen model are computed from, where those rows are trained.

    Its head must stay as it is, gathered where it is sharded, until the last backward that reads
    them (`settle` comes after it).
    """
    places_U = np.unique(rows.predictors_K)
    with torch.no_grad():
        return in_pass(model, lambda: _compute_head_inputs(model, rows, places_U, temperature))


def _compute_head_inputs(
    model: PreTrainedModel, rows: PackedRows, places_U: NDArray[np.int64], temperature: float
) -> HeadInputs:
    with replayed(model, rows):
        hidden_PD = _compute_hidden_states(model, rows)
    head, ids = _find_head(model), known_ids(model)
    bias_V: Tensor | None = getattr(head, "bias", None)
    return HeadInputs(
        hidden_PD[torch.from_numpy(places_U).to(model.device)],
        head.weight[:ids],
        bias_V if bias_V is None else bias_V[:ids],
        temperature / _find_logit_factor(model),
    )


def predicting_states(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    """[K, D] The last hidden states before the trained tokens."""
    return _compute_hidden_states(model, rows)[torch.from_numpy(rows.predictors_K).to(model.device)]


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
            "the trainer", model, rows, lambda r: _compute_packed_logits(model, heads, r), low
        )
    model.train(was_training)
    settle(model)


def _compute_packed_logits(
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
            model,
            lambda: _find_head(model)(_run_backbone(model, ids_P, positions_P, layout)).float(),
        )
    logits_PV = logits_PV * _find_logit_factor(model)
    if layout.calls != heads.num_layers:
        raise ConfigError(
            f"{type(model).__name__} called the trainer's attention {layout.calls} times, expected "
            f"{heads.num_layers}; choose another model"
        )
    return [logits_PV[torch.from_numpy(p)] for p in find_places(parts, packed, lengths)]


def _compute_hidden_states(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    ids_P, positions_P = torch.from_numpy(rows.ids_P), torch.from_numpy(rows.positions_P)
    return _run_backbone(
        model, ids_P, positions_P, AttentionPlan(rows.tree, model.device, rows.cut)
    )


def _run_backbone(
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


def _find_logit_factor(model: PreTrainedModel) -> float:
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
        full: bool,
        reference: HeadInputs | None,
    ) -> Tensor:
        ctx.cuts, ctx.temperature, ctx.reference = cuts, temperature, reference
        ctx.kept = dict[int, tuple[Tensor, Tensor | None]]()
        scores: list[Tensor] = []
        room = KEPT_LOGITS
        for piece, (rows, mine) in enumerate(cuts):
            logprobs_UV = _compute_logprobs(hidden_UD[rows], weight_VD, bias_V, temperature)
            other_UV = reference.logprobs(rows) if reference else None
            at, targets = at_K[mine] - rows.start, targets_K[mine]
            found = [logprobs_UV[at, targets], logprobs_UV.mean(1)[at]]
            if full:
                found += [sums_U[at] for sums_U in _sum_over_vocabulary(logprobs_UV, other_UV)]
            scores.append(torch.stack(found))
            room -= logprobs_UV.numel() * (1 if other_UV is None else 2)
            if any(ctx.needs_input_grad) and room >= 0:
                ctx.kept[piece] = logprobs_UV, other_UV
        ctx.save_for_backward(hidden_UD, weight_VD, bias_V, at_K, targets_K)
        return torch.cat(scores, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_UD, weight_VD, bias_V, at_K, targets_K = ctx.saved_tensors
        given, hidden_UD = hidden_UD, hidden_UD.to(weight_VD.dtype)
        hidden_grad = torch.empty_like(hidden_UD)
        # Pieces are added up in float32 at least: in fewer bits later ones would be rounded off.
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        weight_grad, bias_grad = (
            torch.zeros_like(parameter, dtype=wide) if needed else None
            for parameter, needed in zip(
                (weight_VD, bias_V), ctx.needs_input_grad[1:3], strict=True
            )
        )
        for piece, (rows, mine) in enumerate(ctx.cuts):
            logprobs_UV, other_UV = ctx.kept.pop(piece, (None, None))
            if logprobs_UV is None:
                logprobs_UV = _compute_logprobs(hidden_UD[rows], weight_VD, bias_V, ctx.temperature)
                other_UV = ctx.reference.logprobs(rows) if ctx.reference else None
            at, targets = at_K[mine] - rows.start, targets_K[mine]
            grad_UV = _differentiate_scores(
                logprobs_UV, other_UV, grads[0][:, mine] / ctx.temperature, at, targets
            )
            grad_UV = grad_UV.to(weight_VD.dtype)
            torch.mm(grad_UV, weight_VD, out=hidden_grad[rows])
            if weight_grad is not None and weight_grad.dtype == grad_UV.dtype:
                weight_grad.addmm_(grad_UV.T, hidden_UD[rows])
            elif weight_grad is not None:
                weight_grad += grad_UV.T @ hidden_UD[rows]
            if bias_grad is not None:
                bias_grad += grad_UV.sum(0, dtype=wide)
        weight_grad, bias_grad = (
            gradient if gradient is None else gradient.to(weight_VD.dtype)
            for gradient in (weight_grad, bias_grad)
        )
        return hidden_grad.to(given.dtype), weight_grad, bias_grad, *[None] * 6


def _cut_positions_by_logit_limit(at_K: NDArray[np.int64], vocab: int) -> Cuts:
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


def _sum_over_vocabulary(logprobs_UV: Tensor, reference_UV: Tensor | None) -> tuple[Tensor, Tensor]:
    """[U] The entropy of each position, and its divergence from the reference (0 without one)."""
    probs_UV: Tensor = logprobs_UV.exp()
    finite_UV: Tensor = logprobs_UV.clamp(min=_IMPOSSIBLE)
    entropy_U = torch.linalg.vecdot(probs_UV, finite_UV).neg()
    if reference_UV is None:
        return entropy_U, torch.zeros_like(entropy_U)
    finite_UV -= reference_UV.clamp(min=_IMPOSSIBLE)
    return entropy_U, torch.linalg.vecdot(probs_UV, finite_UV)


def _differentiate_full_sums(
    logprobs_UV: Tensor, reference_UV: Tensor | None, grads_2U: Tensor
) -> Tensor:
    """Of `_sum_over_vocabulary` to logits.

    Both are sums of p f with f = a log p - b log q, whose gradient is p (f - sum of p f): what the
    logarithm itself gives sums to 0.
    """
    entropy_U, divergence_U = grads_2U
    slopes_UV = logprobs_UV.clamp(min=_IMPOSSIBLE).mul_((divergence_U - entropy_U)[:, None])
    if reference_UV is not None:
        slopes_UV.addcmul_(reference_UV.clamp(min=_IMPOSSIBLE), divergence_U[:, None], value=-1)
    probs_UV = logprobs_UV.exp()
    slopes_UV -= torch.linalg.vecdot(probs_UV, slopes_UV)[:, None]
    return slopes_UV.mul_(probs_UV)


def _differentiate_scores(
    logprobs_UV: Tensor,
    reference_UV: Tensor | None,
    grads_SK: Tensor,
    at_K: Tensor,
    targets_K: Tensor,
) -> Tensor:
    """Of scores to logits, in the place of the logprobs."""
    full_UV = None
    if len(grads_SK) > 2 and grads_SK[2:].any():
        grads_2U = grads_SK.new_zeros(2, len(logprobs_UV)).index_add_(1, at_K, grads_SK[2:])
        full_UV = _differentiate_full_sums(logprobs_UV, reference_UV, grads_2U)
    total_U = logprobs_UV.new_zeros(len(logprobs_UV)).index_add_(0, at_K, grads_SK[:2].sum(0))
    grad_UV = logprobs_UV.exp_().mul_(-total_U[:, None])
    grad_UV.index_put_((at_K, targets_K), grads_SK[0], accumulate=True)
    if grads_SK[1].any():
        uniform_U = torch.zeros_like(total_U).index_add_(0, at_K, grads_SK[1])
        grad_UV += uniform_U[:, None] / grad_UV.shape[1]
    return grad_UV if full_UV is None else grad_UV.add_(full_UV)
