"""The trainer's weights as an engine takes them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A `WeightSource` over a module's own parameters: no copies, tied ones once."""

    model: nn.Module

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its first name."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()
