"""Stacked experts, by the names that a model's files have for each of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentrl.weights.plan import Box

if TYPE_CHECKING:
    from torch import Tensor


def by_expert(name: str, shape: Sequence[int]) -> Iterator[tuple[str, Box]]:
    """What files have for a tensor that stacks experts: their names, and the box of each in it.

    Nothing for other tensors.
    """
    stack, _, leaf = name.rpartition(".")
    if not stack.endswith(".experts") or leaf not in ("gate_up_proj", "down_proj"):
        return
    num, rows, columns = shape
    halves = {"gate_proj": (0, rows // 2), "up_proj": (rows // 2, rows)}
    parts = {"down_proj": (0, rows)} if leaf == "down_proj" else halves
    for i in range(num):
        for part, between in parts.items():
            yield f"{stack}.{i}.{part}.weight", ((i, i + 1), between, (0, columns))


def as_in_files(named: "Iterable[tuple[str, Tensor]]") -> "Iterator[tuple[str, Tensor]]":
    """Under the names of a model's files, which have each expert by itself.

    So have servers, which pass in silence over names that they do not know.
    """
    for name, tensor in named:
        experts = dict(by_expert(name, tensor.shape))
        for part, ((i, _), (start, stop), _) in experts.items():
            yield part, tensor.detach()[i, start:stop]
        if not experts:
            yield name, tensor
