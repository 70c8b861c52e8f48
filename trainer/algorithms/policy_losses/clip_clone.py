"""The clipped surrogate beside the likelihood of right answers (VAPO, arXiv:2504.05118)."""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

import numpy as np
import torch
from torch import Tensor

from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.policy_losses.clip import clip
from agentrl.trainer.algorithms.ratios import finite_logprobs
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


@needs("all rows")
def clip_clone(
    logprobs_K: Tensor,
    tokens: TrainedTokens,
    *,
    low: float = 0.2,
    high: float = 0.2,
    share: float = 0.1,
    success_at: float = 1.0,
) -> tuple[Tensor, Statistics]:
    """`clip` minus share * s * the sum of w * log p over the tokens of right answers.

    Right is an episode with a reward of `success_at`. s is the sum of all weights over that of the
    right ones, so that under `token_mean` this is the mean over right tokens, however few there
    are. Of two tokens with w = 1/2, A = 0 and log p = -2 one is right: 0.1 * 2 * 1/2 * 2 = 0.2.
    """
    surrogate, found = clip(logprobs_K, tokens, low=low, high=high)
    batch = tokens.batch
    assert batch.weights_N is not None
    right_R = batch.rewards_E[batch.episode_R] >= success_at
    right_N = np.repeat(right_R, np.diff(batch.offsets_R1))
    right_sum = float(batch.weights_N[right_N].sum(dtype=np.float64))
    scale = float(batch.weights_N.sum(dtype=np.float64)) / right_sum if right_sum else 0.0
    right_K = torch.from_numpy(right_N[tokens.source_K]).to(logprobs_K)
    likelihood = (tokens.weights_K * right_K * finite_logprobs(logprobs_K)).sum()
    return surrogate - share * scale * likelihood, {**found, "right": right_K.sum()}
