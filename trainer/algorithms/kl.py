"""The KL penalty to a reference (estimator k3, as in arXiv:2402.03300, eq. 4)."""

import torch
from torch import Tensor


def k3(logprobs_K: Tensor, reference_K: Tensor) -> Tensor:
    """[K] r - log r - 1 with r = reference / policy: never negative, zero where they agree.

    Over tokens sampled from the policy its mean is KL(policy || reference), in nats.
    """
    log_ratio_K = reference_K - logprobs_K
    return torch.expm1(log_ratio_K) - log_ratio_K
