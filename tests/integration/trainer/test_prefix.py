"""Rows that begin alike: computed once, and the same loss and gradients as one row at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from agentrl.trainer.attention import AttentionPlan, attend, flex
from agentrl.trainer.logprobs import policy_logprobs
from agentrl.trainer.packing import STRIDE, PrefixTree, pack, plan, trained_rows
from agentrl.types import Batch, Segment
from tests.one_thread import one_thread
from tests.unit.trainer.batches import VOCAB, batch_of, plain_logprobs, segment, tiny_model

__all__ = ["one_thread"]


def exact_model() -> LlamaForCausalLM:
    """In float64 throughout: transformers' norms compute in float32, and so round gradients."""
    model = tiny_model()
    names: list[str] = [name for name, _ in model.named_modules()]
    for name in names:
        if name.endswith("norm"):
            model.set_submodule(name, nn.RMSNorm(32, eps=1e-6))
    nn.Module.to(model, torch.float64)
    return model


MODEL = exact_model()


def row(ids: Sequence[int], cuts: Sequence[int]) -> Segment:
    """A segment of these ids: prompt, sampled, environment, sampled, ... by turns."""
    bounds = [*cuts, len(ids)]
    parts = [ids[a:b] for a, b in pairwise(bounds)]
    parts += [[]] * (len(parts) % 2)
    turns = [(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    return segment(ids[: cuts[0]], turns)


def ids(*parts: tuple[int, int]) -> list[int]:
    """Random ids; parts of one seed and length are the same."""
    return [int(i) for seed, n in parts for i in np.random.default_rng(seed).integers(0, VOCAB, n)]


def three_levels() -> Batch:
    """A group's prompt, a turn that three of its rows sampled alike, and another two of these."""
    prompt, turn, deeper = (1, 3 * STRIDE), (2, 2 * STRIDE), (3, STRIDE)
    cut = 3 * STRIDE
    segments = [
        row(ids(prompt, turn, deeper, (4, 5)), [cut]),
        row(ids(prompt, (5, 9)), [cut]),
        row(ids(prompt, turn, deeper, (6, 12)), [cut, cut + 7, cut + 11]),
        row(ids((8, 20)), [6]),
        row(ids(prompt, turn, (7, 3)), [cut - 3]),
    ]
    return batch_of(segments, advantages=(1.0, -0.5, 0.25, 2.0, -1.5), temperature=0.8)


def losses(logprobs_K: Tensor, batch: Batch, source_K: np.ndarray) -> Tensor:
    assert batch.advantages_N is not None
    return (logprobs_K.exp() * torch.from_numpy(batch.advantages_N[source_K])).sum()


def gradients(model: LlamaForCausalLM, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def check_equal(batch: Batch, *, share: bool = True, token_budget: int = 10_000) -> int:
    """Compare logprobs, loss and gradients with one row at a time; returns tokens computed."""
    got_N = torch.zeros(batch.num_tokens, dtype=torch.float64)
    loss = torch.zeros((), dtype=torch.float64)
    num = 0
    for micro in plan(batch, trained_rows(batch), token_budget, share=share):
        packed = pack(batch, micro, share=share)
        assert packed.tree.num_tokens <= token_budget or len(micro) == 1
        logprobs_K = policy_logprobs(MODEL, packed, batch.temperature)
        got_N[torch.from_numpy(packed.source_K)] = logprobs_K.detach()
        loss = loss + losses(logprobs_K, batch, packed.source_K)
        num += packed.tree.num_tokens
    plain_N = plain_logprobs(MODEL, batch)
    source = np.flatnonzero(batch.mask_N)
    expected = losses(plain_N[torch.from_numpy(source)], batch, source)
    torch.testing.assert_close(got_N, plain_N.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(gradients(MODEL, loss), gradients(MODEL, expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    return num


def test_a_tree_of_three_levels_gives_the_gradients_of_its_rows() -> None:
    batch = three_levels()
    alone = check_equal(batch, share=False)
    shared = check_equal(batch)
    # Four rows have the prompt, three the turn, two what is deeper.
    assert alone - shared == 3 * 3 * STRIDE + 2 * 2 * STRIDE + STRIDE
    # A trained token of a shared piece is predicted at one place for rows of other advantages.
    packed = pack(batch, range(batch.num_rows))
    places, counts = np.unique(packed.predictors_K, return_counts=True)
    assert (counts == 3).sum() > STRIDE
    assert len(places) < len(packed.predictors_K)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rows that each begin with a part of an earlier one."""
    rows: list[list[int]] = []
    segments: list[Segment] = []
    for _ in range(draw(st.integers(1, 6))):
        known = draw(st.sampled_from(rows)) if rows else []
        kept = draw(st.integers(0, len(known)))
        fresh = draw(st.integers(max(2 - kept, 0), 25))
        new = known[:kept] + ids((draw(st.integers(0, 99)), fresh))
        rows.append(new)
        cuts = draw(st.sets(st.integers(1, len(new) - 1), min_size=1, max_size=5))
        segments.append(row(new, sorted(cuts)))
    advantages = [draw(st.sampled_from([-1.0, 0.5, 2.0])) for _ in rows]
    return batch_of(segments, advantages=advantages)


@given(batches(), st.sampled_from([1, 40, 10_000]))
@settings(max_examples=25, deadline=None)
def test_any_tree_gives_the_gradients_of_its_rows(batch: Batch, token_budget: int) -> None:
    check_equal(batch, token_budget=token_budget)


def dense(states: Sequence[Tensor], made: PrefixTree, window: int | None, sinks: Tensor) -> Tensor:
    """Attention over the tree with a whole mask, and sinks as one more column of scores."""
    query, key, value = (s.transpose(0, 1) for s in states)
    sizes = np.diff(made.offsets_S1)
    end_P = torch.from_numpy(np.repeat(made.ends_S, sizes))
    starts = zip(sizes.tolist(), made.starts_S.tolist(), strict=True)
    places: list[NDArray[np.int64]] = [np.arange(n) + start for n, start in starts]
    at_P = torch.from_numpy(np.concatenate(places))
    place_P = torch.arange(made.num_tokens)
    sees = (place_P <= place_P[:, None]) & (place_P[:, None] < end_P)
    sees &= at_P[:, None] - at_P < (window or made.longest)
    group = len(query) // len(key)
    scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * 0.3
    scores = scores.masked_fill(~sees, -torch.inf)
    column = sinks[:, None, None].expand(-1, made.num_tokens, 1)
    shares = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return (shares @ value.repeat_interleave(group, 0)).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 5, STRIDE, 3 * STRIDE, 100])
@pytest.mark.parametrize("sunk", [True, False])
def test_windows_and_sinks_have_the_gradients_of_a_dense_mask(
    window: int | None, sunk: bool
) -> None:
    made = pack(three_levels(), range(5)).tree
    layout = AttentionPlan(made, torch.device("cpu"))
    assert len(layout.stems) == 3
    torch.manual_seed(0)
    # Keys that are wider than values, as where keys and values are made of one latent vector.
    shapes = [(made.num_tokens, 4, 8), (made.num_tokens, 2, 8), (made.num_tokens, 2, 6)]
    states = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(made.num_tokens, 4, 6, dtype=torch.float64)
    inputs = [*states, sinks] if sunk else states
    hidden = sinks if sunk else torch.full((4,), -torch.inf, dtype=torch.float64)
    query, key, value = states
    got = attend(query, key, value, layout, 0.3, window, sinks if sunk else None)
    want = dense(states, made, window, hidden)
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad((x * weights).sum(), inputs) for x in (got, want)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("sunk", [True, False])
def test_flex_attention_sees_the_same_tree(window: int | None, sunk: bool) -> None:
    """Forward only: it has no backward on a CPU."""
    made = pack(three_levels(), range(5)).tree
    layout = AttentionPlan(made, torch.device("cpu"))
    query, key, value = (torch.randn(made.num_tokens, heads, 8) for heads in (4, 2, 2))
    sinks = torch.randn(4) if sunk else None
    expected = attend(query, key, value, layout, 0.3, window, sinks)
    torch.testing.assert_close(flex(query, key, value, layout, 0.3, window, sinks), expected)


def test_rows_longer_than_the_budget_are_computed_alone() -> None:
    batch = batch_of([row(ids((1, 30)), [4]), row(ids((2, 9)), [4]), row(ids((3, 9)), [4])])
    assert plan(batch, trained_rows(batch), 16) in ([[0], [1, 2]], [[1, 2], [0]], [[0], [2, 1]])
