"""New weights for vLLM's servers: a file that each of their workers loads."""

from collections.abc import Sequence
from typing import cast

from agentrl.engine.servers.control import as_json_object
from agentrl.engine.servers.weights import (
    SAMPLED_VALUES,
    FileWeights,
    Named,
    check_tensor_rows_arrived,
)
from agentrl.engine.vllm.control import VllmControl
from agentrl.errors import EngineError


class FileTransport(FileWeights[VllmControl]):
    """A safetensors file in memory or on a disk: its folder is seen by all, or has relays."""

    async def load(self, control: VllmControl, folder: str, *, flush: bool) -> None:
        """Let the workers of a server load the file in a folder of its host."""
        for missing in await control.call_workers(
            "agentrl_load", folder, timeout_s=self._timeout_s
        ):
            if missing != []:
                raise EngineError(
                    f"the server at {control.url} got no weights for {missing}; it serves another "
                    "model"
                )
        if flush:
            await control.flush()

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
