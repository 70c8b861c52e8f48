"""Per-token estimators of the divergence from a reference (Schulman 2020, "Approximating KL").

Over tokens that the policy sampled, the means of k1 and k3 are KL(policy || reference), in nats;
that of k2 is near it. What their gradients are is another matter, since samples are taken as given:

    k1  (log policy - log reference) nothing on average: it is not offered for a loss
    k2  that of KL(policy || reference), the penalty that is meant
    k3  that of KL(reference || policy), as GRPO has it (arXiv:2402.03300, eq. 4); near the
        reference the two are alike
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor


def k2(logprobs_K: Tensor, reference_K: Tensor) -> Tensor:
    """[K] Half of (log policy - log reference)^2: never negative, biased where they differ much."""
    return 0.5 * (logprobs_K - reference_K) ** 2


def k3(logprobs_K: Tensor, reference_K: Tensor) -> Tensor:
    """[K] r - log r - 1 with r = reference / policy: never negative, zero where they agree."""
    log_ratio_K = reference_K - logprobs_K
    return torch.expm1(log_ratio_K) - log_ratio_K


PENALTIES: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {"k2": k2, "k3": k3}
"""Those that a loss can have."""
