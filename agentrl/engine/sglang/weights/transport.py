"""What every way to bring weights to SGLang servers has in common.

    begin ─▶ buckets ─▶ end ─▶ a sampled tensor read back ─▶ version

The version is named last, so a server never samples under it before all of it is there. The
servers are paused all the while.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and safetensors are not typed)

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agentrl.engine.sglang.control import Control, Info
from agentrl.engine.sglang.weights.bucket import Named
from agentrl.engine.sglang.weights.layout import sources
from agentrl.errors import EngineError
from agentrl.weights.check import check_finite
from agentrl.weights.experts import as_in_files
from agentrl.weights.source import WeightSource

UPDATE_S = 600.0
"""How long a server may take for one bucket."""
_SAMPLED_VALUES = 4096
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Target = tuple[Control, Info]


class Transport(Protocol):
    """Brings weights to servers."""

    async def publish(
        self, targets: Sequence[Target], weights: WeightSource, version: int, *, flush: bool = True
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

    async def retire(self, control: Control, version: int) -> None:
        """Let a server forget a version that no request uses."""
        ...

    async def aclose(self) -> None:
        """Let go of groups and files."""
        ...


class CheckedWeights:
    """What all transports share: which tensors there must be, and the check of one of them.

    A server has `timeout_s` for each bucket.
    """

    def __init__(self, *, timeout_s: float = UPDATE_S) -> None:
        self._timeout_s = timeout_s
        self._shapes: Mapping[str, torch.Size] | None = None
        self._published: tuple[int, Sequence[float]] | None = None
        self._listed: dict[str, frozenset[str]] = {}
        """By server: all that it has."""
        self._made_of: dict[str, Mapping[str, frozenset[str]]] = {}
        """By server: its tensors, and those that are sent of which each is made."""
        self._digests: dict[tuple[str, str], tuple[Sequence[bytes], Sequence[str]]] = {}
        """By server and tensor: ours and the server's, when it was last looked at."""

    async def publish(
        self, targets: Sequence[Target], weights: WeightSource, version: int, *, flush: bool = True
    ) -> Sequence[EngineError | None]:
        """As `Transport.publish`."""
        named = self._list_tensors_to_check(weights, targets)
        again = self._published is not None and self._published[0] == version
        self._check_version_keeps_sums(named, version)
        loaded = list(as_in_files(named))
        failures = await self.send(targets, loaded, version, flush=flush)
        if again:  # the trainer may have begun to change them meanwhile
            self._check_version_keeps_sums(self._list_tensors_to_check(weights, targets), version)

        async def finish(target: Target, failure: EngineError | None) -> None:
            if failure is not None:
                raise failure
            await self.confirm(target[0], named, version)

        return await call_each(zip(targets, failures, strict=True), lambda pair: finish(*pair))

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        raise NotImplementedError

    async def confirm(self, control: Control, named: Named, version: int) -> None:
        """Compare a sampled tensor, then name the version."""
        name, tensor = named[version % len(named)]
        rows = max(1, _SAMPLED_VALUES // max(1, tensor[0].numel()))
        theirs = await control.first_rows(name, rows)
        if theirs is None:
            await self._check_digests_change(control, named, version)
        else:
            _check_tensor_rows_arrived(control, name, tensor[:rows], theirs)
        await control.set_version(version)

    async def _check_digests_change(self, control: Control, named: Named, version: int) -> None:
        """Digests must change where ours do: most models' servers tell no numbers.

        How a server hashes depends on its device, so one digest by itself says nothing; the first
        ones of all tensors are only kept. Later it looks at all vectors, one matrix, and one stack
        of experts.
        """
        ours = dict(named)
        made_of = self._made_of.get(control.url)
        if made_of is None:
            theirs = await control.checksums()
            shapes = {name: tuple(tensor.shape) for name, tensor in named}
            found = ((name, sources(name, shapes)) for name in theirs[0])
            self._listed[control.url] = frozenset(theirs[0])
            made_of = self._made_of[control.url] = {name: parts for name, parts in found if parts}
            chosen = list(made_of)
        else:
            by_rank: dict[int, list[str]] = defaultdict(list)
            for name, parts in made_of.items():
                by_rank[ours[min(parts)].ndim].append(name)
            chosen = [names[version % len(names)] for n, names in by_rank.items() if n > 1]
            chosen += by_rank[1]
            # The server skips what has one of these names in its own.
            rest = self._listed[control.url].difference(chosen)
            theirs = await control.checksums([n for n in rest if not any(n in c for c in chosen)])
        for name in chosen:
            made = (ours[part].detach().cpu().contiguous() for part in sorted(made_of[name]))
            raws: Any = [tensor.view(-1).view(torch.uint8).numpy() for tensor in made]
            digests = [hashlib.blake2b(raw, digest_size=16).digest() for raw in raws]
            now = (digests, [one[name] for one in theirs])
            before = self._digests.get((control.url, name), now)
            if (now[0] == before[0]) != (now[1] == before[1]):
                raise EngineError(
                    f"the server's {name} {'did not change' if now[1] == before[1] else 'changed'},"
                    f" but what was sent did{' not' if now[0] == before[0] else ''}; the server at "
                    f"{control.url} has not taken the weights"
                )
            self._digests[control.url, name] = now  # only now, as what failed is sent once more

    def adapter(self, version: int) -> str | None:
        """Versions are weights of the model, no adapters."""
        return None

    async def retire(self, control: Control, version: int) -> None:
        """Nothing is left of weights that were overwritten."""

    async def aclose(self) -> None:
        """Nothing is held."""

    def _list_tensors_to_check(self, weights: WeightSource, targets: Sequence[Target]) -> Named:
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


@asynccontextmanager
async def update_session(control: Control, info: Info) -> AsyncGenerator[None]:
    """An update session where the server has them, closed also after a failure."""
    if not info.has_sessions:
        yield
        return
    try:
        await control.begin_update()
    except EngineError as error:
        if "already open" not in str(error):
            raise
        await control.end_update()  # of a trainer that died
        await control.begin_update()
    try:
        yield
    finally:
        await control.end_update()


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


def _check_tensor_rows_arrived(
    control: Control, name: str, sent: Tensor, received: Sequence[object]
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
