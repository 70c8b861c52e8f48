"""Weights in a request, or over a disk."""

# pyright: reportUnknownVariableType=false
# (safetensors is not fully typed)

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from agentrl.engine.servers.weights import UPDATE_S, Named, call_each
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


class DiskTransport(CheckedWeights):
    """A safetensors file that every server reads; the folder must be seen by all of them."""

    def __init__(self, root: Path | None = None, *, timeout_s: float = UPDATE_S) -> None:
        super().__init__(timeout_s=timeout_s)
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=root))

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in named}
        save_file(tensors, self._folder / "model.safetensors", metadata={"format": "pt"})
        body = {"model_path": str(self._folder), "flush_cache": flush}
        path, timeout_s = "/update_weights_from_disk", self._timeout_s
        return await call_each(targets, lambda one: one[0].send(path, body, timeout_s=timeout_s))

    async def aclose(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
