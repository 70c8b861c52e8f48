"""Which experts a mixture of experts sends each token to: noted while it runs, or given.

Routers in transformers are modules `...TopKRouter` that take the best of their scores with
`torch.topk`; what that call gives is what is noted or replaced. The weights of given experts are
the router's own, with their gradient.

Suffixes: N tokens of a pass, L layers with experts.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers in the order of the layers; none in a dense model."""
    return [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]


@contextmanager
def routed(model: nn.Module, experts: Sequence[Tensor] | None = None) -> Generator[list[Tensor]]:
    """Send tokens to `experts`, [N, chosen] for each layer, or note those that are chosen.

    Gives the list to which each pass of each layer adds its own.
    """
    noted: list[Tensor] = []
    found = routers(model)
    before = [router.__dict__.get("forward") for router in found]
    for layer, router in enumerate(found):
        given = None if experts is None else experts[layer]
        router.forward = partial(_route, type(router).forward, router, given, noted)
    try:
        yield noted
    finally:
        for router, forward in zip(found, before, strict=True):
            if forward is None:
                del router.forward
            else:
                router.forward = forward


def _route(
    forward: Callable[..., Any],
    router: nn.Module,
    given: Tensor | None,
    noted: list[Tensor],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with _Choice(given, noted):
        return forward(router, *args, **kwargs)


class _Choice(TorchFunctionMode):
    """`torch.topk` takes the given experts, if any."""

    def __init__(self, given: Tensor | None, noted: list[Tensor]) -> None:
        super().__init__()
        self._given = given
        self._noted = noted

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in (torch.topk, Tensor.topk):
            return func(*args, **(kwargs or {}))
        if self._given is None:
            values, chosen = func(*args, **(kwargs or {}))
        else:
            values, chosen = args[0].gather(-1, self._given), self._given
        self._noted.append(chosen)
        return values, chosen
