"""GAE and the value loss against numbers worked out by hand."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantages.gae import gae, gae_sums, turn_gae, vapo
from agentrl.trainer.algorithms.scan import discounted_sums
from agentrl.trainer.algorithms.trajectories import Trajectories
from agentrl.trainer.algorithms.value_loss import value_loss
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment


def one_turn(rewards: Sequence[float], values: Sequence[float]) -> Batch:
    """One episode, a turn of one token for each reward, with the critic's values before them."""
    turns = [([3], [9]) for _ in rewards]
    batch = batch_of([segment([1], turns)], turn_rewards=[tuple(rewards)])
    values_N = np.zeros(batch.num_tokens, np.float32)
    values_N[batch.mask_N] = values
    return replace(batch, values_N=values_N)


def test_advantages_by_hand() -> None:
    # delta = 0 + 0.9 * 0.5 - 0.2, 1 + 0.9 * -0.4 - 0.5, 2 + 0 + 0.4
    tokens = Trajectories.of(one_turn([0, 1, 2], [0.2, 0.5, -0.4]))
    assert gae_sums(tokens, discount=0.9, decay=0) == pytest.approx([0.25, 0.14, 2.4])
    # 2.4; 0.14 + 0.45 * 2.4; 0.25 + 0.45 * 1.22
    assert gae_sums(tokens, discount=0.9, decay=0.5) == pytest.approx([0.799, 1.22, 2.4])


@given(
    steps=st.lists(st.lists(st.floats(-5, 5), max_size=150), max_size=5),
    factors=st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_a_scan_is_the_defining_sum(steps: list[list[float]], factors: list[float]) -> None:
    lengths_E = np.array([len(s) for s in steps], np.int64)
    values_K = np.array([x for s in steps for x in s], np.float64)
    got = discounted_sums(values_K, lengths_E, np.array(factors[: len(steps)]))
    expected: list[float] = []
    for factor, values in zip(factors, steps, strict=False):
        sums = [0.0]
        for x in reversed(values):
            sums.append(x + factor * sums[-1])
        expected += reversed(sums[1:])
    assert got.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_turn_as_one_action() -> None:
    batch = two_segments()
    # At the first token of each turn: 0.5 and 0, 0.25, 0.5; of the other episode 0.
    values_N = np.zeros(batch.num_tokens, np.float32)
    values_N[batch.mask_N] = [0.5, 9, 0.25, 0.5, 9, 0]
    got = turn_gae(replace(batch, values_N=values_N), discount=1, decay=0, scale_by_std=False)
    # deltas: 0.5 + 0.25 - 0.5, 0 + 0.5 - 0.25, 1 - 0.5, -1; less their mean over the tokens
    deltas = np.array([0.25, 0.25, 0.25, 0.5, 0.5, -1])
    assert got[batch.mask_N] == pytest.approx(deltas - deltas.mean())


def test_vapo_looks_as_far_as_the_answer_is_long() -> None:
    long, short = one_turn([0.0] * 199 + [1.0], [0.0] * 200), one_turn([0.0, 1.0], [0.0] * 2)
    for batch, decay in ((long, 0.9), (short, 0.0)):
        got = vapo(batch, scale_by_std=False)[batch.mask_N]
        expected = np.array([decay ** (len(got) - 1 - t) for t in range(len(got))])
        assert got == pytest.approx(expected - expected.mean(), abs=1e-6)


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
    assert Trajectories.of(batch).rewards_K().tolist() == [0, 0.5, 0, 0, 1, -1]
    untrained = batch.mask_N & (batch.turns_N != 2)  # such as a summary that is not trained
    masked = replace(batch, mask_N=untrained)
    assert Trajectories.of(masked).rewards_K().tolist() == [0, 0.5, 1, -1]
    behind = replace(batch, mask_N=batch.mask_N & (batch.turns_N > 0))
    assert Trajectories.of(behind).rewards_K().tolist() == [0, 0, 1]
    with pytest.raises(RunError, match="no turn rewards"):
        Trajectories.of(replace(batch, turn_rewards_U=None)).rewards_K()


def test_an_episode_is_one_chain_over_its_segments() -> None:
    batch = two_segments()
    values_N = np.where(batch.mask_N, np.arange(batch.num_tokens) / 10, 0).astype(np.float32)
    batch = replace(batch, values_N=values_N)
    got = gae_sums(Trajectories.of(batch), discount=1, decay=1)
    returns = [1.5, 1.5, 1, 1, 1, -1]
    assert got == pytest.approx(returns - values_N[batch.mask_N])
    assert not gae(batch)[~batch.mask_N].any()
    advantages = gae(batch)[batch.mask_N]
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(advantages.std()) == pytest.approx(1, abs=1e-6)
    with pytest.raises(RunError, match="has no values"):
        gae(replace(batch, values_N=None))
    values_N[1] = np.nan
    with pytest.raises(RunError, match="not finite"):
        gae(batch)


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
