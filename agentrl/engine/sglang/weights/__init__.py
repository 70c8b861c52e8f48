"""How new weights reach SGLang servers: over shared memory or a disk, in requests, by a broadcast.

Or only as an adapter.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from agentrl.engine.servers.weight_files import MEMORY
from agentrl.engine.servers.weights import Transport
from agentrl.engine.sglang.weights.adapter import AdapterTransport
from agentrl.engine.sglang.weights.broadcast import BroadcastTransport
from agentrl.engine.sglang.weights.bucket import DigestedBucket, buckets
from agentrl.engine.sglang.weights.local import DiskTransport, TensorTransport
from agentrl.engine.sglang.weights.shared import SharedTransport

__all__ = [
    "AdapterTransport",
    "BroadcastTransport",
    "DigestedBucket",
    "DiskTransport",
    "SharedTransport",
    "TensorTransport",
    "Transport",
    "buckets",
    "make_transport",
]


def make_transport(
    kind: Literal["tensor", "shared", "disk", "distributed"], relays: Sequence[str] = ()
) -> Transport:
    """The transport of a configuration; with relays it is a file, whatever the kind."""
    if relays:
        return DiskTransport(MEMORY, relays)
    kinds: dict[str, Callable[[], Transport]] = {
        "shared": SharedTransport,
        "disk": DiskTransport,
        "tensor": TensorTransport,
        "distributed": BroadcastTransport,
    }
    return kinds[kind]()
