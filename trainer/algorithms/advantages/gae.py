"""Generalized advantage estimation (arXiv:1506.02438, eqs. 16 and 11-12): GAE, by turns, VAPO.

Beyond the last token nothing follows, whether the episode was ended or cut: a budget that cuts it
is part of the task.
"""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.scan import discounted_sums
from agentrl.trainer.algorithms.trajectories import Trajectories, turn_rewards, values_of, whiten
from agentrl.types import Batch


@needs("critic", "turn rewards")
def gae(
    batch: Batch, *, discount: float = 1.0, decay: float = 0.95, scale_by_std: bool = True
) -> NDArray[np.float32]:
    """Sums of (discount * decay)^l * delta_(t+l), whitened over the step's tokens.

    delta_t = r_t + discount * V_(t+1) - V_t. A step is one trained token; what the environment
    writes is part of the next state. With a decay of 1 this is the return less the value. Values
    0.5, 0.5 and a reward of 1 at the second token: deltas 0, 0.5, sums 0.475, 0.5.
    """
    tokens = Trajectories.of(batch)
    return _whiten_per_token(tokens, gae_sums(tokens, discount=discount, decay=decay), scale_by_std)


@needs("critic", "turn rewards")
def vapo(
    batch: Batch, *, discount: float = 1.0, alpha: float = 0.05, scale_by_std: bool = True
) -> NDArray[np.float32]:
    """GAE whose decay goes by the trajectory's length (VAPO, arXiv:2504.05118, eq. 10).

    decay = 1 - 1 / (alpha * l) for l trained tokens, at least 0: the sums reach about alpha * l
    tokens ahead, so long answers hear of their end. 20 tokens have 0, 200 have 0.9. The critic is
    taught by returns (trainer.critic.target_decay 1), as the paper does.
    """
    tokens = Trajectories.of(batch)
    decay_E = np.maximum(0.0, 1 - 1 / (alpha * np.maximum(tokens.lengths_E, 1)))
    return _whiten_per_token(
        tokens, gae_sums(tokens, discount=discount, decay=decay_E), scale_by_std
    )


@needs("critic", "turn rewards")
def turn_gae(
    batch: Batch, *, discount: float = 1.0, decay: float = 0.95, scale_by_std: bool = True
) -> NDArray[np.float32]:
    """GAE in which a turn is one action: its state is all before its first trained token.

    delta_u = r_u + discount * V_(u+1) - V_u, with one advantage for all tokens of a turn
    (arXiv:2512.17008). Turns in which nothing is trained give their reward to the turn before. One
    turn of 100 tokens with value 0.4 and reward 1: 0.6 at each of them.
    """
    tokens = Trajectories.of(batch)
    turn_K, values_K, rewards_K = tokens.turns_K(), values_of(tokens), tokens.rewards_K()
    first_A = np.flatnonzero(np.diff(turn_K, prepend=-1))  # A: turns with a trained token
    rewards_A = np.add.reduceat(rewards_K, first_A) if len(first_A) else rewards_K
    turns_E = np.diff(np.searchsorted(first_A, np.append(tokens.starts_E, len(turn_K))))
    deltas_A = _compute_discounted_value_steps(values_K[first_A], turns_E, discount) + rewards_A
    sums_A = discounted_sums(deltas_A, turns_E, discount * decay)
    found_K = np.repeat(sums_A, np.diff(np.append(first_A, len(turn_K))))
    return _whiten_per_token(tokens, _require_finite(found_K), scale_by_std)


def gae_sums(
    tokens: Trajectories, *, discount: float, decay: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """[K] The sums as they are; with the values they are the critic's targets.

    Raises RunError without values, or if a reward or a value is not finite.
    """
    deltas_K = _compute_discounted_value_steps(values_of(tokens), tokens.lengths_E, discount)
    tokens.add_rewards(deltas_K)
    return _require_finite(discounted_sums(deltas_K, tokens.lengths_E, discount * decay))


def _whiten_per_token(
    tokens: Trajectories, sums_K: NDArray[np.float64], scale: bool
) -> NDArray[np.float32]:
    """[N] Nothing where the critic was right but for the rounding of its values."""
    batch = tokens.batch
    assert batch.values_N is not None
    return tokens.put(whiten(sums_K, batch.values_N, turn_rewards(batch)[0], scale=scale))


def _compute_discounted_value_steps(
    values: NDArray[np.float64], lengths_E: NDArray[np.int64], discount: float
) -> NDArray[np.float64]:
    """Discount * V_(t+1) - V_t, where beyond the last step nothing is to come."""
    errors = np.zeros(len(values))
    np.multiply(values[1:], discount, out=errors[:-1])
    errors[np.cumsum(lengths_E)[lengths_E > 0] - 1] = 0.0
    errors -= values
    return errors


def _require_finite(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(sums.sum()):  # one pass, where a test of each would make an array of its own
        raise RunError("a reward or a value of the batch is not finite; check the critic's loss")
    return sums
