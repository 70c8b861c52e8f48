"""Per-token estimators of the divergence from a reference (Schulman 2020, "Approximating KL").

Over tokens that the policy p sampled, the means of k1 and k3 are KL(p || q) to the reference q, in
nats; that of k2 is near it. `exact` is KL(p || q) of the whole distribution that a token was drawn
from. What their gradients are, on average, is another matter. In the loss samples are taken as
given, and the penalty of each is moved:

    k1     nothing: it is not offered there
    k2     that of KL(p || q), the penalty that is meant
    k3     that of KL(q || p), as GRPO has it (arXiv:2402.03300, eq. 4); near q the two are alike
    exact  that of KL(p || q), without the noise of samples

In the reward (`kl_reward`) penalties are taken as given, and a token is made less likely by its own
and by those that follow it. Of its own:

    k1     that of KL(p || q)
    k2     next to nothing near q, where its square is small
    k3     that of KL(p || q) less that of KL(q || p): next to nothing near q
    exact  nothing, since it is equal for all tokens there; what follows counts alone
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
