"""New weights for vLLM's servers: a file that each of their workers loads."""

# pyright: reportUnknownVariableType=false
# (safetensors is not fully typed)

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from safetensors.torch import save_file

from agentrl.engine.servers.control import Info, as_json_object
from agentrl.engine.servers.weights import (
    SAMPLED_VALUES,
    UPDATE_S,
    Named,
    PublishedWeights,
    call_each,
    check_tensor_rows_arrived,
)
from agentrl.engine.vllm.control import VllmControl
from agentrl.errors import EngineError

MEMORY = Path("/dev/shm")


class FileTransport(PublishedWeights[VllmControl]):
    """A safetensors file in memory or on a disk; the servers must see its folder."""

    def __init__(self, root: Path | None = MEMORY, *, timeout_s: float = UPDATE_S) -> None:
        super().__init__(timeout_s=timeout_s)
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=root))

    async def send(
        self,
        targets: Sequence[tuple[VllmControl, Info]],
        named: Named,
        version: int,
        *,
        flush: bool,
    ) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        file = self._folder / "model.safetensors"
        try:
            save_file({name: tensor.cpu().contiguous() for name, tensor in named}, file)
        except OSError as error:
            raise EngineError(
                f"the weights cannot be written to {self._folder} ({error}); make room, or set "
                "engine.vllm.transport to disk"
            ) from error

        async def load(target: tuple[VllmControl, Info]) -> None:
            control, _ = target
            lists = await control.call_workers(
                "agentrl_load", str(self._folder), timeout_s=self._timeout_s
            )
            for missing in lists:
                if missing != []:
                    raise EngineError(
                        f"the server at {control.url} got no weights for {missing}; it serves "
                        "another model"
                    )
            if flush:
                await control.flush()

        try:
            return await call_each(targets, load)
        finally:
            file.unlink()  # it is memory

    async def confirm(self, control: VllmControl, named: Named, version: int) -> None:
        """Compare a tensor that the server tells numbers of, another each time; name the version.

        On a CPU matrices are packed, so those are norms and the embedding.
        """
        (found, *_) = await control.call_workers("agentrl_shapes")
        shapes = as_json_object(found)
        whole = [(name, tensor) for name, tensor in named if shapes.get(name) == [*tensor.shape]]
        if not whole:
            raise EngineError(f"the server at {control.url} has none of the model's tensors")
        name, tensor = whole[version % len(whole)]
        num = max(1, SAMPLED_VALUES // max(1, tensor[0].numel()))
        (rows, *_) = await control.call_workers("agentrl_rows", name, num)
        check_tensor_rows_arrived(control, name, tensor[:num], cast("Sequence[object]", rows))
        await control.set_version(version)

    async def aclose(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
