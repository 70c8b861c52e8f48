"""The attention kinds of an accelerator against that of the CPU, which the other tests prove."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.trainer import attention
from agentrl.trainer.attention import AttentionPlan, attend
from agentrl.trainer.device import resolve_device
from agentrl.trainer.packing import PrefixTree, pieces, tree
from tests.one_thread import one_thread

__all__ = ["one_thread"]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
LENGTHS = (300, 170, 290, 33, 200)


@pytest.fixture(scope="module")
def device() -> torch.device:
    found = resolve_device("auto")
    if found.type == "cpu":
        pytest.skip("no accelerator")
    return found


def compute(made: PrefixTree, device: torch.device, dtype: torch.dtype) -> Sequence[Tensor]:
    """The output and the gradients of query, key and value, from the same numbers everywhere."""
    torch.manual_seed(0)
    drawn = [torch.randn(made.num_tokens, heads, 64) for heads in (4, 2, 2, 4)]
    query, key, value, gradient = (t.to(device, dtype) for t in drawn)
    states = [state.requires_grad_() for state in (query, key, value)]
    output = attend(states[0], states[1], states[2], AttentionPlan(made, device), 0.125)
    results = (output, *torch.autograd.grad(output, states, gradient))
    return [result.detach().float().cpu() for result in results]


@pytest.mark.parametrize("shared", [(0, 0, 0, 0, 0), (0, 160, 200, 0, 32)])
def test_flex_attention_has_the_gradients_of_the_cpu(
    shared: tuple[int, ...], device: torch.device
) -> None:
    made = tree(pieces(LENGTHS, shared), max(LENGTHS))
    expected = compute(made, torch.device("cpu"), torch.float32)
    for got, want in zip(compute(made, device, torch.float32), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def test_flash_attention_has_the_gradients_of_the_cpu(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flash_attn")
    calls: list[int] = []
    used = attention._attend_by_flash  # pyright: ignore[reportPrivateUsage]

    def count(*arguments: Tensor) -> Tensor:
        calls.append(1)
        return used(*arguments)  # type: ignore[arg-type]  # passed through as given

    monkeypatch.setattr(attention, "_attend_by_flash", count)
    made = tree(pieces(LENGTHS, [0] * 5), max(LENGTHS))
    assert np.array_equal(made.offsets_S1[1:], made.ends_S)
    expected = compute(made, torch.device("cpu"), torch.float32)
    for got, want in zip(compute(made, device, torch.bfloat16), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    assert calls
