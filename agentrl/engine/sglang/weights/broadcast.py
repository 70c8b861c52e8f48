"""Weights by a broadcast: one process group with each server, so that none waits for another."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and safetensors are not typed)

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from agentrl.engine.servers.control import Info
from agentrl.engine.servers.weights import UPDATE_S, Named, call_each
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights.bucket import DigestedBucket, buckets
from agentrl.engine.sglang.weights.transport import CheckedWeights, Target, update_session
from agentrl.errors import EngineError


@dataclass(frozen=True, slots=True)
class _Group:
    """With one server."""

    name: str
    ours: Any
    control: Control
    info: Info


class BroadcastTransport(CheckedWeights):
    """Broadcasts buckets over gloo from a CPU and over NCCL from a GPU."""

    def __init__(self, *, timeout_s: float = UPDATE_S) -> None:
        super().__init__(timeout_s=timeout_s)
        self._groups: dict[str, _Group] = {}

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        made = list(buckets(named))
        return await call_each(
            targets, lambda target: self._broadcast_buckets_to_server(target, made, flush)
        )

    async def aclose(self) -> None:
        """Take the groups apart on both sides."""
        groups, self._groups = self._groups, {}

        await call_each(list(groups.values()), _tell_server_to_leave_group)

    async def _broadcast_buckets_to_server(
        self, target: Target, made: Sequence[DigestedBucket], flush: bool
    ) -> None:
        control, info = target
        try:
            group = await self._find_or_make_update_group(control, info, made[0].data.device.type)
            async with update_session(control, info):
                for i, bucket in enumerate(made):
                    body = {
                        "names": [meta.name for meta in bucket.metadata],
                        "dtypes": [str(meta.dtype).split(".")[1] for meta in bucket.metadata],
                        "shapes": [list(meta.shape) for meta in bucket.metadata],
                        "group_name": group.name,
                        "load_format": "flattened_bucket",
                        "flush_cache": flush and i == len(made) - 1,
                    }
                    path, timeout_s = "/update_weights_from_distributed", self._timeout_s
                    post = control.send(path, body, timeout_s=timeout_s)
                    await _await_server_and_own_side(
                        post, asyncio.to_thread(self._broadcast_tensor, group.ours, bucket.data)
                    )
        except EngineError:
            self._groups.pop(control.url, None)  # nobody knows where its other side is
            raise

    async def _find_or_make_update_group(self, control: Control, info: Info, device: str) -> _Group:
        """The group with one server, made at its first use and when it came back from the dead."""
        known = self._groups.pop(control.url, None)
        if known is not None and known.info is not info:
            await call_each([known], _tell_server_to_leave_group)
            known = None
        if known is not None:
            self._groups[control.url] = known
            return known
        if info.dp_size != 1:
            raise EngineError(
                f"the server at {control.url} has dp_size {info.dp_size}, but a broadcast reaches "
                "1 only; set engine.sglang.transport to tensor or disk"
            )
        name, size = f"agentrl-{uuid4().hex[:8]}", 1 + info.tp_size
        backend = "gloo" if device == "cpu" else "nccl"
        host, port = _find_address_for_server(control.url)
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": size,
            "group_name": name,
            "backend": backend,
        }
        post = control.send("/init_weights_update_group", body, timeout_s=self._timeout_s)
        join = asyncio.to_thread(
            self._join_update_group_as_rank_0, f"tcp://{host}:{port}", size, name, backend
        )
        group = _Group(name, await _await_server_and_own_side(post, join), control, info)
        self._groups[control.url] = group
        return group

    def _join_update_group_as_rank_0(self, address: str, size: int, name: str, backend: str) -> Any:
        """Be rank 0 of a group that stands beside the trainer's own, as the server makes it."""
        limit = timedelta(seconds=self._timeout_s)
        private: Any = c10d
        store, rank, size = next(private.rendezvous(address, 0, size, timeout=limit))
        store.set_timeout(limit)
        group, _ = private._new_process_group_helper(
            size,
            rank,
            [],
            private.Backend(backend),
            private.PrefixStore(name, store),
            group_name=name,
            timeout=limit,
        )
        return group

    def _broadcast_tensor(self, group: Any, data: torch.Tensor) -> None:
        options: Any = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=self._timeout_s)
        group.broadcast([data], options).wait()


async def _tell_server_to_leave_group(group: _Group) -> None:
    body = {"group_name": group.name}
    await group.control.send("/destroy_weights_update_group", body, timeout_s=10)


async def _await_server_and_own_side(post: Any, work: Any) -> Any:
    """Wait for the server's answer and for our side; a failure of ours is an EngineError too."""
    results: Sequence[Any] = await asyncio.gather(post, work, return_exceptions=True)
    for result in results:
        if isinstance(result, EngineError):
            raise result
        if isinstance(result, RuntimeError):  # what torch.distributed raises
            raise EngineError(f"the broadcast of weights failed: {result}") from result
        if isinstance(result, BaseException):
            raise result
    return results[1]


def _find_address_for_server(url: str) -> tuple[str, int]:
    """An address of this host that the server can reach, and a port that is free on it."""
    target = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target.hostname or "127.0.0.1", target.port or 80))  # sends nothing
        host: str = probe.getsockname()[0]
    with socket.socket() as server:
        server.bind((host, 0))
        port: int = server.getsockname()[1]
    return host, port
