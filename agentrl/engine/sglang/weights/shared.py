"""Slices of the trainer's ranks straight into the ranks of servers on this host.

    trainer's ranks ─ write their slices ─▶ bucket in shared memory ◀─ map it, copy ─ server's ranks

A server gets its first update by its own loader, as whole tensors. Then the digests of all that its
ranks hold are compared with what the layout would have put there; only a layout that is proven so
is used to load each rank's tensors as they are, which a wrong one would not survive.

What can be known is checked before a byte is loaded: the old version serves on after an error. A
rank or a server that fails between two buckets leaves a server with parts of both; it gets all new
weights once more, by its own loader, and if that fails too serves nothing until the next update.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch are not typed)

import base64
import hashlib
import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from agentrl.engine.servers.control import Info
from agentrl.engine.servers.weights import UPDATE_S, Named
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights.layout import loader_layout, server_layout
from agentrl.engine.sglang.weights.transport import CheckedWeights, Target, update_session
from agentrl.errors import EngineError
from agentrl.weights.check import Sums, written
from agentrl.weights.plan import Bucket, Layout, buckets, plan, shapes_of
from agentrl.weights.shared import Shared, share, view
from agentrl.weights.source import SlicedSource, WeightSource

BUCKET_BYTES = 128 << 20
"""A tensor that is larger travels alone."""

Digests = dict[tuple[int, str], str]
"""By rank and name."""


@dataclass(frozen=True, slots=True)
class _Route:
    """How weights of one layout reach a server."""

    buckets: Sequence[Bucket]
    direct: bool
    """Each rank's own tensors; otherwise whole ones for the server's loader."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A server: as it was started, and the routes to it for a layout of the trainer's."""

    info: Info
    theirs: Layout
    loader: _Route
    direct: _Route
    dtype: torch.dtype


class _Torn(EngineError):
    """A server has some of the new weights, and some of the old ones."""


class SharedTransport(CheckedWeights):
    """Takes slices, of one rank or many; the servers' processes must be able to map our memory."""

    def __init__(self, *, bucket_bytes: int = BUCKET_BYTES, timeout_s: float = UPDATE_S) -> None:
        """A bucket is written, and loaded by a server, within `timeout_s` each."""
        super().__init__(timeout_s=timeout_s)
        self._bucket_bytes = bucket_bytes
        self._servers: dict[str, _Known] = {}
        self._memory: Shared | None = None
        self._given: tuple[int, Sums] | None = None

    async def publish(
        self, targets: Sequence[Target], weights: WeightSource, version: int, *, flush: bool = True
    ) -> Sequence[EngineError | None]:
        """As `Transport.publish`; one server after the other."""
        if not isinstance(weights, SlicedSource):
            raise EngineError(
                f"weights of type {type(weights).__name__} have no slices to share; set "
                "engine.sglang.transport to tensor"
            )
        failures: list[EngineError | None] = []
        for target in targets:
            try:
                await self._update_one_server(target, weights, version, flush)
                failures.append(None)
            except EngineError as error:
                if not isinstance(error, _Torn) and None not in failures:
                    raise
                failures.append(error)
        return failures

    async def aclose(self) -> None:
        """Let go of the memory."""
        self._memory = None

    def payload(self, bucket: Bucket, rank: int, data: Tensor, dtype: torch.dtype) -> Named:
        """The tensors of a bucket that one rank is to load, where they lie."""
        names = [name for receiver, name in bucket.places if receiver == rank]
        return [(name, view(data, bucket, rank, name, dtype)) for name in names]

    async def _update_one_server(
        self, target: Target, weights: SlicedSource, version: int, flush: bool
    ) -> None:
        control, info = target
        known = self._servers.get(control.url)
        theirs = weights.layout()
        proven = known is not None and known.info is info
        if known is None or not proven or known.theirs != theirs:
            known = await self._plan_routes_to_server(control, info, theirs)
        if not proven:
            sums = await self._load_and_compare_all_weights(target, known, weights, flush)
        else:
            sampled = known.direct.buckets[version % len(known.direct.buckets)]
            sums, digests = await self._load_buckets_on_server(
                target, known, known.direct, weights, flush, sampled
            )
            await _check_sampled_server_digests(control, known, digests)
        self._servers[control.url] = known
        if self._given is not None and self._given[0] == version and self._given[1] != sums:
            raise _Torn(
                f"the trainer's weights are those of version {version} no longer; the next "
                "update brings new ones"
            )
        self._given = (version, sums)
        await control.set_version(version)

    async def _load_and_compare_all_weights(
        self, target: Target, known: _Known, weights: SlicedSource, flush: bool
    ) -> Sums:
        """Have all weights loaded by the server's own loader, unless it has them, and compare."""
        control, _ = target
        sums, holds = await self._compare_layout_with_server(control, known, weights)
        if not holds:
            await self._load_buckets_on_server(target, known, known.loader, weights, flush)
            sums, holds = await self._compare_layout_with_server(control, known, weights)
        if not holds:
            raise _Torn(
                f"the server at {control.url} does not hold its tensors as expected; set "
                "engine.sglang.transport to tensor"
            )
        return sums

    async def _plan_routes_to_server(self, control: Control, info: Info, theirs: Layout) -> _Known:
        """Read the live server's layout."""
        config = _read_server_model_config(info)
        names = [list(rank) for rank in await control.checksums()]
        shapes = shapes_of(theirs)
        kv_heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 1
        name = info.dtype if info.dtype != "auto" else config.get("dtype", "float32")
        dtype: torch.dtype = getattr(torch, name)

        def route(ours: Layout, *, direct: bool) -> _Route:
            moves = plan(theirs, ours)
            made = buckets(ours, moves, dtype.itemsize, self._bucket_bytes)
            return _Route(made, direct)

        direct = route(server_layout(names, shapes, kv_heads=kv_heads), direct=True)
        return _Known(info, theirs, route(loader_layout(shapes), direct=False), direct, dtype)

    async def _compare_layout_with_server(
        self, control: Control, known: _Known, weights: SlicedSource
    ) -> tuple[Sums, bool]:
        """Whether each rank of the server holds just what the layout would give it."""
        memory = self._get_or_make_bucket_memory(known.direct)
        digests: Digests = {}
        sums: dict[tuple[int, str], float] = {}
        for bucket in known.direct.buckets:
            sums |= await self._write_bucket_to_memory(bucket, memory, known, weights)
            digests |= _digest_each_tensor_of_bucket(memory, bucket, known.dtype)
        found = await control.checksums()
        theirs = {(i, name): digest for i, one in enumerate(found) for name, digest in one.items()}
        return sums, digests == theirs

    async def _load_buckets_on_server(
        self,
        target: Target,
        known: _Known,
        route: _Route,
        weights: SlicedSource,
        flush: bool,
        sampled: Bucket | None = None,
    ) -> tuple[Sums, Digests]:
        """Bucket by bucket: have it written, then have it loaded."""
        control, info = target
        memory = self._get_or_make_bucket_memory(route)
        requests = [
            self._make_bucket_payloads(known, route, bucket, memory) for bucket in route.buckets
        ]
        sums: dict[tuple[int, str], float] = {}
        digests: Digests = {}
        sums |= await self._write_bucket_to_memory(route.buckets[0], memory, known, weights)
        try:
            async with update_session(control, info):
                for i, (bucket, body) in enumerate(zip(route.buckets, requests, strict=True)):
                    if i:
                        sums |= await self._write_bucket_to_memory(bucket, memory, known, weights)
                    if bucket is sampled:
                        digests = _digest_each_tensor_of_bucket(memory, bucket, known.dtype)
                    last = flush and i == len(requests) - 1
                    texts = [_pickle_shared_tensors(named) for named in body]
                    await control.send(
                        "/update_weights_from_tensor",
                        {
                            "serialized_named_tensors": texts,
                            "load_format": "direct" if route.direct else None,
                            "flush_cache": last,
                        },
                        timeout_s=self._timeout_s,
                    )
        except EngineError as error:
            raise _Torn(str(error)) from error
        return sums, digests

    def _make_bucket_payloads(
        self, known: _Known, route: _Route, bucket: Bucket, memory: Shared
    ) -> Sequence[Named]:
        """For each rank of the server what it is to load, checked: a wrong name would end it."""
        ranks: list[Named] = []
        for rank in range(known.info.tp_size):
            place = rank if route.direct else 0
            named = self.payload(bucket, place, memory.data, known.dtype)
            _check_tensors_fit_bucket(named, bucket, place, known.dtype)
            # An expert comes to the server's loader without the dimension of experts.
            ranks.append(
                [(n, t if route.direct or t.ndim < 3 else t.flatten(0, 1)) for n, t in named]
            )
        return ranks

    def _get_or_make_bucket_memory(self, route: _Route) -> Shared:
        """The memory of the buckets, which is kept."""
        needed = max(bucket.num_bytes for bucket in route.buckets)
        if self._memory is None or self._memory.handle.num_bytes < needed:
            self._memory = None
            self._memory = share(needed)
        return self._memory

    async def _write_bucket_to_memory(
        self, bucket: Bucket, memory: Shared, known: _Known, weights: SlicedSource
    ) -> Sums:
        for (receiver, name), place in bucket.places.items():
            if place.is_padded:
                view(memory.data, bucket, receiver, name, known.dtype).zero_()
        return await written(weights, bucket, memory, known.dtype, self._timeout_s)


def _read_server_model_config(info: Info) -> Mapping[str, Any]:
    path = Path(info.model_path) / "config.json"
    try:
        config: Mapping[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise EngineError(
            f"the server's {path} cannot be read here ({error.strerror}), so it is on another "
            "host; set engine.sglang.transport to distributed"
        ) from error
    return config


def _check_tensors_fit_bucket(named: Named, bucket: Bucket, rank: int, dtype: torch.dtype) -> None:
    expected = {name: place.shape for (r, name), place in bucket.places.items() if r == rank}
    got = {name: tuple(tensor.shape) for name, tensor in named}
    faults = (
        ("lacks", expected.keys() - got.keys()),
        ("holds the unknown", got.keys() - expected.keys()),
    )
    for what, wrong in faults:
        if wrong:
            raise EngineError(
                f"what is sent to rank {rank} {what} {min(wrong)}; the old weights stay"
            )
    for name, tensor in named:
        if got[name] != expected[name] or tensor.dtype != dtype:
            raise EngineError(
                f"{name} would be sent to rank {rank} as {tensor.dtype} of shape {got[name]}, "
                f"expected {dtype} of shape {expected[name]}; the old weights stay"
            )


def _digest_each_tensor_of_bucket(memory: Shared, bucket: Bucket, dtype: torch.dtype) -> Digests:
    """As the server makes them of what is in a CPU's memory."""
    found: Digests = {}
    for rank, name in bucket.places:
        values = view(memory.data, bucket, rank, name, dtype)
        raw: Any = values.reshape(-1).view(torch.uint8).numpy()
        found[rank, name] = hashlib.sha256(raw).hexdigest()[:16]
    return found


async def _check_sampled_server_digests(control: Control, known: _Known, expected: Digests) -> None:
    """Compare some tensors, so that a server need not read all of its weights."""
    wanted = {name for _, name in expected}
    others = {name for bucket in known.direct.buckets for _, name in bucket.places} - wanted
    # The server skips what has one of these names in its own.
    skipped = [name for name in others if not any(name in one for one in wanted)]
    found = await control.checksums(skipped)
    for (rank, name), digest in expected.items():
        if found[rank].get(name) != digest:
            raise _Torn(
                f"rank {rank} of the server at {control.url} has other numbers in {name} than were "
                "sent; it has not taken the weights"
            )


def _pickle_shared_tensors(named: Named) -> str:
    """Names, and where in our memory the server finds the tensors."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=4)
    known: Any = ForkingPickler(io.BytesIO()).dispatch_table
    pickler.dispatch_table = {**known, torch.UntypedStorage: _pickle_storage_by_filename}
    pickler.dump(list(named))
    return base64.b64encode(buffer.getvalue()).decode()


def _pickle_storage_by_filename(storage: Any) -> tuple[Any, tuple[Any, ...]]:
    """As torch pickles it where a process shares by `file_system`; the server is a user more."""
    where = storage._share_filename_cpu_()
    storage._shared_incref()
    return reductions.rebuild_storage_filename, (torch.UntypedStorage, *where)
