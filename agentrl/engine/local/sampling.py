"""Draw tokens: by inverse CDF from counter-based random numbers, nothing truncated.

Suffixes: B sequences, V vocabulary. The draw of a sequence depends on its seed, its position and
its own distribution only, never on its neighbours in the batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 128


def uniforms(seeds_B: NDArray[np.uint64], positions_B: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of seed and position (splitmix64, 53 bits)."""
    with np.errstate(over="ignore"):
        return _to_unit(_mix(_mix(seeds_B) + positions_B.astype(np.uint64) * _GOLDEN))


def _mix(state_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed_B = state_B + _GOLDEN
    mixed_B = (mixed_B ^ (mixed_B >> np.uint64(30))) * _MIX_1
    mixed_B = (mixed_B ^ (mixed_B >> np.uint64(27))) * _MIX_2
    return mixed_B ^ (mixed_B >> np.uint64(31))


def _to_unit(bits_B: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (bits_B >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(
    logits_BV: Tensor, temperatures_B: NDArray[np.float32], uniforms_B: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The drawn ids and their natural logprobs under the sampling distribution.

    A temperature of 0 takes the most likely id and gives its logprob at temperature 1. A logprob
    that is not finite says that the model's output was not.
    """
    greedy_B = temperatures_B == 0
    scale_B = np.where(greedy_B, 1.0, temperatures_B).astype(np.float32)
    logits_BV = logits_BV.float()
    if (scale_B != 1).any():
        logits_BV = logits_BV / torch.from_numpy(scale_B).to(logits_BV.device)[:, None]
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    if greedy_B.all():
        ids_B = logprobs_BV.argmax(dim=-1)
    else:
        ids_B = _invert_cdf(logprobs_BV.exp(), torch.from_numpy(uniforms_B))
        if greedy_B.any():
            is_greedy_B = torch.from_numpy(greedy_B).to(ids_B.device)
            ids_B = torch.where(is_greedy_B, logprobs_BV.argmax(dim=-1), ids_B)
    chosen_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
    return ids_B.cpu().numpy(), chosen_B.cpu().numpy()


def _invert_cdf(probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The first id at which the cumulative probability exceeds `uniform * total`.

    Two levels, so that only one pass reads the whole vocabulary: the block of ids first, then the
    id in its block; sums of blocks and the search are in float64.
    """
    batch, vocab = probs_BV.shape
    if vocab % _BLOCK:
        probs_BV = torch.nn.functional.pad(probs_BV, (0, -vocab % _BLOCK))
    blocks = probs_BV.view(batch, -1, _BLOCK)
    cdf = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniforms_B.to(cdf.device)[:, None] * cdf[:, -1:]
    block = torch.searchsorted(cdf, target, right=True).clamp_(max=cdf.shape[1] - 1)
    before = torch.where(block > 0, cdf.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inner = blocks[torch.arange(batch, device=cdf.device), block[:, 0]]
    inner_cdf = inner.to(torch.float64).cumsum(dim=-1)
    # Just below the block's own mass, so that rounding cannot choose an id of probability zero.
    limit = torch.nextafter(inner_cdf[:, -1:], torch.zeros_like(target))
    within = torch.searchsorted(inner_cdf, torch.minimum(target - before, limit), right=True)
    return (block * _BLOCK + within)[:, 0].clamp_(max=vocab - 1)
