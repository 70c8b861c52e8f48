"""The critic's loss: squared error, clipped as in PPO's reference code (arXiv:2005.12729, 3.1).

Suffix: K trained tokens.
"""

import torch
from torch import Tensor


def value_loss(
    values_K: Tensor, old_K: Tensor, targets_K: Tensor, weights_K: Tensor, *, clip: float
) -> Tensor:
    """Half the weighted sum of the larger square: of the value, or of it kept near the old one.

    A value that has moved by more than `clip` towards its target has no gradient any more.
    """
    kept_K = old_K + (values_K - old_K).clamp(-clip, clip)
    squares_K = torch.maximum((values_K - targets_K) ** 2, (kept_K - targets_K) ** 2)
    return 0.5 * (weights_K * squares_K).sum()
