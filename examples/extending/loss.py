import torch
from torch import Tensor

from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens

MOST = 1.5


def truncated(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
    """REINFORCE with importance weights that are cut off (CISPO, arXiv:2506.13585, eq. 4)."""
    ratio_K = torch.exp(logprobs_K.detach() - tokens.old_K)
    weights_K = tokens.weights_K * ratio_K.clamp(max=MOST) * tokens.advantages_K
    return -(weights_K * logprobs_K).sum(), {"cut": (ratio_K > MOST).sum()}
