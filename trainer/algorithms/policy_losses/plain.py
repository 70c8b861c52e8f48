"""Losses without a ratio: the policy gradient itself, cloning of chosen tokens."""

from torch import Tensor

from agentrl.trainer.algorithms.ratios import finite_logprobs
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def policy_gradient(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
    """REINFORCE: minus the sum of w * A * log p (Williams 1992).

    Its gradient by a logprob is -w A, whatever the policy has become since the sample was drawn; it
    is right on the first update of a batch only, so several are refused. A = 2 gives -2.
    """
    return -(tokens.weights_K * tokens.advantages_K * finite_logprobs(logprobs_K)).sum(), {}


def clone(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
    """Behavior cloning of the tokens with a positive advantage: minus the sum of w * log p.

    How large the advantage is does not count; the others are not trained on (rejection sampling, as
    in RAFT, arXiv:2304.06767). A = 2 gives -1, A = -1 gives 0.
    """
    chosen_K = (tokens.advantages_K > 0).to(logprobs_K)
    cloned = {"cloned": chosen_K.sum()}
    return -(tokens.weights_K * chosen_K * finite_logprobs(logprobs_K)).sum(), cloned
