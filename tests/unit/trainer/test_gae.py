"""GAE and the value loss against numbers worked out by hand."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import RunError
from agentrl.trainer.algorithms.gae import Gae, gae, token_gae, token_rewards
from agentrl.trainer.algorithms.value_loss import value_loss
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment


def array(*values: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array(values, dtype=np.float64)


def test_advantages_by_hand() -> None:
    # delta = 0 + 0.9 * 0.5 - 0.2, 1 + 0.9 * -0.4 - 0.5, 2 + 0 + 0.4
    rewards, values = array(0, 1, 2), array(0.2, 0.5, -0.4)
    assert gae(rewards, values, discount=0.9, decay=0) == pytest.approx([0.25, 0.14, 2.4])
    # 2.4; 0.14 + 0.45 * 2.4; 0.25 + 0.45 * 1.22
    assert gae(rewards, values, discount=0.9, decay=0.5) == pytest.approx([0.799, 1.22, 2.4])


@given(
    steps=st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=6),
    discount=st.floats(0.1, 1),
    decay=st.floats(0, 1),
)
def test_advantages_are_the_defining_sum(
    steps: list[tuple[float, float]], discount: float, decay: float
) -> None:
    rewards, values = (array(*column) for column in zip(*steps, strict=True))
    got = gae(rewards, values, discount=discount, decay=decay)
    following = [*values[1:], 0.0]
    deltas = [r + discount * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    for t in range(len(steps)):
        powers = [(discount * decay) ** i * delta for i, delta in enumerate(deltas[t:])]
        assert got[t] == pytest.approx(sum(powers), abs=1e-9)


def two_segments() -> Batch:
    """Episode 0: turns 0 and 1, then turn 2 in a segment of its own; episode 1: one turn."""
    first = segment([1], [([2, 3], [9]), ([4], [9])])
    second = segment([1], [([5, 6], [])])
    second = replace(second, turns_T=np.full_like(second.turns_T, 2))
    other = segment([1], [([7], [])])
    return batch_of(
        [first, second, other], episodes=[0, 0, 1], turn_rewards=[(0.5, 0.0, 1.0), (-1.0,)]
    )


def test_rewards_of_turns_stand_at_their_last_trained_tokens() -> None:
    batch = two_segments()
    assert token_rewards(batch)[batch.mask_N].tolist() == [0, 0.5, 0, 0, 1, -1]
    untrained = batch.mask_N & (batch.turns_N != 2)  # such as a summary that is not trained
    masked = replace(batch, mask_N=untrained)
    assert token_rewards(masked)[untrained].tolist() == [0, 0.5, 1, -1]
    behind = replace(batch, mask_N=batch.mask_N & (batch.turns_N > 0))
    assert token_rewards(behind)[behind.mask_N].tolist() == [0, 0, 1]
    with pytest.raises(RunError, match="no turn rewards"):
        token_rewards(replace(batch, turn_rewards_U=None))


def test_an_episode_is_one_chain_over_its_segments() -> None:
    batch = two_segments()
    values_N = np.where(batch.mask_N, np.arange(batch.num_tokens) / 10, 0).astype(np.float32)
    batch = replace(batch, values_N=values_N)
    got = token_gae(batch, discount=1, decay=1)
    returns = [1.5, 1.5, 1, 1, 1, -1]
    assert got[batch.mask_N] == pytest.approx(returns - values_N[batch.mask_N])
    assert not got[~batch.mask_N].any()
    advantages = Gae()(batch)[batch.mask_N]
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(advantages.std()) == pytest.approx(1, abs=1e-6)
    with pytest.raises(RunError, match="has no values"):
        Gae()(replace(batch, values_N=None))
    values_N[1] = np.nan
    with pytest.raises(RunError, match="not finite"):
        Gae()(batch)


def test_the_value_loss_and_its_gradient_by_hand() -> None:
    values = torch.tensor([1.0, 0.5, 0.1, 3.0], requires_grad=True)
    old = torch.tensor([0.9, 0.0, 0.0, 2.5])
    targets = torch.tensor([2.0, 1.0, -1.0, 3.0])
    weights = torch.tensor([1.0, 1.0, 2.0, 0.5])
    loss = value_loss(values, old, targets, weights, clip=0.2)
    torch.autograd.backward(loss)
    # 1: near the old value. 2: went too far towards its target: (0.2 - 1)^2, no gradient. 3: went
    # away from it. 4: has reached it, but too fast: (2.7 - 3)^2, no gradient.
    assert loss.item() == pytest.approx(0.5 * (1 + 0.64 + 2 * 1.21 + 0.5 * 0.09))
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-1.0, 0.0, 2.2, 0.0])
