"""A model's weights as ranks would hold them: rows dealt in chunks, the last ones with fewer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch are not typed)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from torch import Tensor, nn

from agentrl.trainer.weights import write_slices
from agentrl.weights.plan import Bucket, Handle, Held, Layout, Part, Written
from agentrl.weights.shared import attach


@dataclass
class RowSlices:
    """A `SlicedSource` in one process; `spoil` may alter what a rank is told to move."""

    model: nn.Module
    ranks: int
    spoil: Callable[[Bucket], Bucket] = lambda bucket: bucket

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def layout(self) -> Layout:
        ranks: list[dict[str, Held]] = []
        for rank in range(self.ranks):
            ranks.append({})
            for name, value in self._own(rank).items():
                first = self._first(name, rank)
                sides = [(first, first + len(value)), *((0, n) for n in value.shape[1:])]
                part = Part(name, tuple(sides), (0,) * value.ndim)
                ranks[-1][name] = Held(tuple(value.shape), (part,) if len(value) else ())
        return ranks

    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        data = attach(memory)
        bucket = self.spoil(bucket)
        return [
            write_slices(self._own(rank).items(), bucket, rank, data, dtype)
            for rank in range(self.ranks)
        ]

    def _first(self, name: str, rank: int) -> int:
        rows = len(self.model.get_parameter(name))
        return min(rows, rank * ceil(rows / self.ranks))

    def _own(self, rank: int) -> dict[str, Tensor]:
        return {
            name: value[self._first(name, rank) : self._first(name, rank + 1)]
            for name, value in self.named_tensors()
        }
