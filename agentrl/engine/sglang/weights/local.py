"""Weights in a request, or in a file."""

from collections.abc import Sequence

from agentrl.engine.servers.weights import FileWeights, Named, call_each
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights.bucket import buckets
from agentrl.engine.sglang.weights.transport import CheckedWeights, Target, update_session
from agentrl.errors import EngineError


class TensorTransport(CheckedWeights):
    """Buckets in the body of a request: the bytes of a CPU, or where a GPU's memory is."""

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        made = list(buckets(named))

        async def to_one(target: Target) -> None:
            control, info = target
            async with update_session(control, info):
                for i, bucket in enumerate(made):
                    # One text per rank; an empty list would end the server.
                    texts = [bucket.packed()] * info.tp_size
                    body = {
                        "serialized_named_tensors": texts,
                        "load_format": "flattened_bucket",
                        "flush_cache": flush and i == len(made) - 1,
                    }
                    await control.send(
                        "/update_weights_from_tensor", body, timeout_s=self._timeout_s
                    )

        return await call_each(targets, to_one)


class DiskTransport(FileWeights[Control], CheckedWeights):
    """A safetensors file that every server reads: its folder is seen by all, or has relays."""

    async def load(self, control: Control, folder: str, *, flush: bool) -> None:
        """Let a server load the file in a folder of its host."""
        body = {"model_path": folder, "flush_cache": flush}
        await control.send("/update_weights_from_disk", body, timeout_s=self._timeout_s)
