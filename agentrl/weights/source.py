"""Where new weights come from: whole tensors, or the slices of several ranks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.weights.plan import Bucket, Handle, Layout, Written

if TYPE_CHECKING:
    import torch


class WeightSource(Protocol):
    """Where new weights come from: named full tensors with Hugging Face names."""

    def named_tensors(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        """Every parameter once; tied ones under their first name only."""
        ...


@runtime_checkable
class SlicedSource(WeightSource, Protocol):
    """Weights that lie in slices at several ranks of a trainer, on the engine's host."""

    def layout(self) -> Layout:
        """Which rank holds what."""
        ...

    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        """Let every rank write its moves into a bucket, as numbers of a type of torch."""
        ...


class Trained(Protocol):
    """The trainer whose weights an engine samples with."""

    def weights(self) -> WeightSource:
        """Those of now."""
        ...

    def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The logprob of each id but the first given those before it."""
        ...
