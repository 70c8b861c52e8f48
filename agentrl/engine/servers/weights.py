"""What every way to bring weights to servers has in common.

    begin ─▶ parts ─▶ end ─▶ a sampled tensor read back ─▶ version

The version is named last, so a server never samples under it before all of it is there. The
servers are paused all the while.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and safetensors are not typed)

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentrl.engine.servers.control import Info, ServerControl
from agentrl.engine.servers.weight_files import WeightFiles, host_of
from agentrl.errors import EngineError
from agentrl.weights.check import check_finite
from agentrl.weights.experts import as_in_files
from agentrl.weights.source import WeightSource

UPDATE_S = 600.0
"""How long a server may take for one part."""
SAMPLED_VALUES = 4096
"""Numbers of a tensor that are read back."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Named = Sequence[tuple[str, Tensor]]
C = TypeVar("C", bound=ServerControl)


class Transport(Protocol):
    """Brings weights to servers."""

    async def stage(
        self, targets: Sequence[tuple[Any, Info]], weights: WeightSource, version: int
    ) -> None:
        """Bring what can be brought while the servers sample; `publish` does the rest, or all."""
        ...

    async def publish(
        self,
        targets: Sequence[tuple[Any, Info]],
        weights: WeightSource,
        version: int,
        *,
        flush: bool = True,
    ) -> Sequence[EngineError | None]:
        """Send to all targets, check, name the version; for each target None or its failure.

        `flush` forgets the keys and values of the old weights, for which nothing may run.

        Raises EngineError if the weights are not those of the model, or not those that the version
        was given to before; then no server serves them.
        """
        ...

    def adapter(self, version: int) -> str | None:
        """The adapter that requests of a version name, if versions are adapters."""
        ...

    async def retire(self, control: Any, version: int) -> None:
        """Let a server forget a version that no request uses."""
        ...

    async def aclose(self) -> None:
        """Let go of groups and files."""
        ...


class PublishedWeights(ABC, Generic[C]):
    """What all transports share: which tensors there must be, sent once and under one version.

    A server has `timeout_s` for each part.
    """

    def __init__(self, *, timeout_s: float = UPDATE_S) -> None:
        self._timeout_s = timeout_s
        self._shapes: Mapping[str, torch.Size] | None = None
        self._published: tuple[int, Sequence[float]] | None = None
        self._staged: tuple[int, Named] | None = None
        """What `stage` brought, which `publish` need not list and check once more."""

    async def stage(
        self, targets: Sequence[tuple[C, Info]], weights: WeightSource, version: int
    ) -> None:
        """Nothing: most ways end where the old weights are."""

    async def publish(
        self,
        targets: Sequence[tuple[C, Info]],
        weights: WeightSource,
        version: int,
        *,
        flush: bool = True,
    ) -> Sequence[EngineError | None]:
        """As `Transport.publish`."""
        staged, self._staged = self._staged, None
        if staged is not None and staged[0] == version:
            named, again = staged[1], False
        else:
            again = self._published is not None and self._published[0] == version
            named = self._list_tensors_to_check(weights, targets)
            self._check_version_keeps_sums(named, version)
        loaded = list(as_in_files(named))
        failures = await self.send(targets, loaded, version, flush=flush)
        if again:  # the trainer may have begun to change them meanwhile
            self._check_version_keeps_sums(self._list_tensors_to_check(weights, targets), version)

        async def finish(target: tuple[C, Info], failure: EngineError | None) -> None:
            if failure is not None:
                raise failure
            await self.confirm(target[0], named, version)

        return await call_each(zip(targets, failures, strict=True), lambda pair: finish(*pair))

    async def send(
        self, targets: Sequence[tuple[C, Info]], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets; not called where `publish` sends slices instead."""
        raise NotImplementedError

    @abstractmethod
    async def confirm(self, control: C, named: Named, version: int) -> None:
        """Compare what can be read of the server, then name the version."""

    def adapter(self, version: int) -> str | None:
        """Versions are weights of the model, no adapters."""
        return None

    async def retire(self, control: C, version: int) -> None:
        """Nothing is left of weights that were overwritten."""

    async def aclose(self) -> None:
        """Nothing is held."""

    def _list_tensors_to_check(
        self, weights: WeightSource, targets: Sequence[tuple[C, Info]]
    ) -> Named:
        dtypes = {_DTYPES.get(info.dtype) for _, info in targets}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        named = [
            (name, tensor.detach() if dtype is None else tensor.detach().to(dtype))
            for name, tensor in weights.named_tensors()
        ]
        shapes = {name: tensor.shape for name, tensor in named}
        if len(shapes) != len(named) or not named:
            raise EngineError(
                f"the new weights name {len(named)} tensors by {len(shapes)} names; send every "
                "parameter once"
            )
        if self._shapes is not None and shapes != self._shapes:
            wrong = min(set(shapes.items()) ^ set(self._shapes.items()))
            raise EngineError(
                f"the new weights differ from the model's in {wrong[0]} {tuple(wrong[1])}; send "
                "every parameter, with its shape, under its Hugging Face name"
            )
        for name, tensor in named:
            check_finite(name, tensor)
        self._shapes = shapes
        return named

    def _check_version_keeps_sums(self, named: Named, version: int) -> None:
        """Refuse other numbers under a version that has been given: the sums would differ."""
        sums = [float(tensor.sum(dtype=torch.float64)) for _, tensor in named]
        before, known = self._published or (-1, sums)
        if before == version and known != sums:
            raise EngineError(
                f"the trainer's weights are those of version {version} no longer; the next "
                "update brings new ones"
            )
        self._published = (version, sums)


async def call_each(
    items: "Sequence[Any] | Iterator[Any]", call: Callable[[Any], Awaitable[None]]
) -> list[EngineError | None]:
    """Call for all at once; the EngineError of each, or None."""
    results = await asyncio.gather(*(call(item) for item in items), return_exceptions=True)
    failures: list[EngineError | None] = []
    for result in results:
        if result is not None and not isinstance(result, EngineError):
            raise result
        failures.append(result)
    return failures


class FileWeights(PublishedWeights[C]):
    """Weights in a file that each server loads: from here, or from a relay on its host."""

    def __init__(
        self, root: Path | None = None, relays: Sequence[str] = (), *, timeout_s: float = UPDATE_S
    ) -> None:
        """`root`: where the file lies; with `relays`, one of each host, servers need not see it."""
        super().__init__(timeout_s=timeout_s)
        self._files = WeightFiles(root, relays, timeout_s=timeout_s)

    async def stage(
        self, targets: Sequence[tuple[C, Info]], weights: WeightSource, version: int
    ) -> None:
        """Bring the file to the hosts that have a relay."""
        if not self._files.hosts:
            return
        named = self._list_tensors_to_check(weights, targets)
        self._check_version_keeps_sums(named, version)
        await self._files.bring(as_in_files(named), version, self._files.hosts)
        self._staged = version, named

    async def send(
        self, targets: Sequence[tuple[C, Info]], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""

        async def load(target: tuple[C, Info]) -> None:
            folder = self._files.folder_for(target[0].url)
            await self.load(target[0], folder, flush=flush)

        try:
            hosts = {host_of(control.url) for control, _ in targets}
            await self._files.bring(named, version, hosts)
            return await call_each(targets, load)
        finally:
            await self._files.forget()

    @abstractmethod
    async def load(self, control: C, folder: str, *, flush: bool) -> None:
        """Let a server load the file in a folder of its host."""

    async def aclose(self) -> None:
        """Remove the folder."""
        await self._files.aclose()


def check_tensor_rows_arrived(
    control: ServerControl, name: str, sent: Tensor, received: Sequence[object]
) -> None:
    """Compare some rows of a tensor that were read back."""
    ours = sent.float().cpu().numpy()
    theirs = np.array(received, dtype=np.float32)
    tolerance = 1e-6 if sent.dtype == torch.float32 else 1e-2
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
        raise EngineError(
            f"the server at {control.url} has other numbers in {name} than were sent; it has not "
            "taken the weights"
        )
