"""The policy's logprobs of trained tokens, from one packed forward pass.

Logits are computed at the positions before trained tokens only, in bounded pieces.

Suffixes: P packed tokens, K trained tokens, D hidden width, V vocabulary.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.trainer.attention import buckets, row_attention
from agentrl.trainer.packing import PackedRows

MAX_LOGITS = 2**24
"""Logits that exist at a time (64 MiB of float32)."""


def policy_logprobs(model: PreTrainedModel, rows: PackedRows, temperature: float) -> Tensor:
    """[K] Natural logs of softmax(logits / temperature) at the trained tokens."""
    return policy_scores(model, rows, temperature)[0]


def policy_scores(model: PreTrainedModel, rows: PackedRows, temperature: float) -> Tensor:
    """[2, K] The logprobs of the trained tokens, and the mean logprob over the vocabulary there.

    The second is what a uniform target would score, for label smoothing.
    """
    hidden_PD = _hidden(model, rows)
    predictors_K = torch.from_numpy(rows.predictors_K).to(model.device)
    targets_K = torch.from_numpy(rows.targets_K).to(model.device)
    return _head_scores(_head(model), hidden_PD[predictors_K], targets_K, temperature)


def sequence_logprobs(
    model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """The logprob of each id but the first given those before it, by the model's own pass."""
    ids_T = torch.tensor(ids, device=model.device)
    with torch.no_grad():
        logits_TV = model(input_ids=ids_T[None]).logits[0, :-1].float() / temperature
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(x) for x in logprobs_TV.gather(1, ids_T[1:, None])[:, 0]]


def check_model(model: PreTrainedModel) -> None:
    """Compare this module's pass with the model's own on two short rows.

    Raises ConfigError if they differ, as they do where logits are scaled or capped after the head.
    """
    ids = torch.arange(11, device=model.device) % _head(model).weight.shape[0]
    lengths = [7, 4]
    with torch.no_grad():
        hidden = _hidden_of(model, ids, torch.cat([torch.arange(n) for n in lengths]), (7, 4))
        packed = _head(model)(hidden)
        own = torch.cat([model(input_ids=row[None]).logits[0] for row in torch.split(ids, lengths)])
    difference = float((packed - own).abs().max())
    if not difference <= 1e-3 * max(1.0, float(own.abs().max())):
        raise ConfigError(
            f"the trainer's packed pass of {type(model).__name__} differs from the model's own by "
            f"{difference:.3g} in a logit; choose a model with plain causal attention whose logits "
            "are its head of the last hidden states"
        )


def _hidden(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    ids_P, positions_P = torch.from_numpy(rows.ids_P), torch.from_numpy(rows.positions_P)
    return _hidden_of(model, ids_P, positions_P, rows.lengths)


def _hidden_of(
    model: PreTrainedModel, ids_P: Tensor, positions_P: Tensor, lengths: tuple[int, ...]
) -> Tensor:
    with row_attention(model):
        output = model.base_model(
            input_ids=ids_P[None].to(model.device),
            position_ids=positions_P[None].to(model.device),
            use_cache=False,
            row_buckets=buckets(lengths, model.device),
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers'
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{type(model).__name__} has no linear output head; train a causal language model"
        )
    return head


def _head_scores(
    head: nn.Linear, hidden_KD: Tensor, targets_K: Tensor, temperature: float
) -> Tensor:
    size = max(1, MAX_LOGITS // head.weight.shape[0])
    if len(hidden_KD) <= size:
        return _piece(head, hidden_KD, targets_K, temperature)
    pieces: list[Tensor] = [
        # Only the piece in work has its logits in memory; backward computes them again.
        checkpoint(_piece, head, hidden, targets, temperature, use_reentrant=False)
        for hidden, targets in zip(
            torch.split(hidden_KD, size), torch.split(targets_K, size), strict=True
        )
    ]
    return torch.cat(pieces, dim=1)


def _piece(head: nn.Linear, hidden_KD: Tensor, targets_K: Tensor, temperature: float) -> Tensor:
    logits_KV: Tensor = head(hidden_KD)
    # At least float32, whatever the model computes in.
    logits_KV = logits_KV.to(torch.promote_types(logits_KV.dtype, torch.float32))
    if temperature != 1:
        logits_KV = logits_KV / temperature
    chosen_K = logits_KV.gather(1, targets_K[:, None]).squeeze(1)
    scores_2K = torch.stack([chosen_K, logits_KV.mean(dim=1)])
    return scores_2K - torch.logsumexp(logits_KV, dim=1)
