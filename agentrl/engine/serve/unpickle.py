"""Pickled tensors from a client, read without running anything that a pickle may name.

The names are SGLang's own, since that is what its clients write; what is read are plain tensors by
value. Shared memory is not: it would need code of the sender's choice.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch are not typed)

import base64
import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._utils import _rebuild_tensor_v2  # pyright: ignore[reportPrivateUsage]

from agentrl.engine.sglang.weights.bucket import METADATA, FlattenedTensorMetadata
from agentrl.errors import EngineError

Named = Sequence[tuple[str, Tensor]]


def _load_storage_safely(data: bytes) -> Any:
    """Stands in for torch's function of that name, which would unpickle anything."""
    return torch.load(io.BytesIO(data), weights_only=True)


def _rebuild_parameter_as_tensor(data: Tensor, *_: object) -> Tensor:
    return data


_DTYPES = ("uint8", "float16", "bfloat16", "float32", "float64")
_ALLOWED: Mapping[tuple[str, str], Any] = {
    METADATA: FlattenedTensorMetadata,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter_as_tensor,
    ("torch.storage", "_load_from_bytes"): _load_storage_safely,
    **{("torch", name): getattr(torch, name) for name in _DTYPES},
}


class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    """The pure-Python one: damaged bytes make the other one claim any amount of memory."""

    def find_class(self, module: str, name: str) -> Any:
        """What the allow-list has under this name."""
        found = _ALLOWED.get((module, name))
        if found is None:
            raise EngineError(
                f"the tensors name {module}.{name}, which is not read here; send them by value, "
                "as pickle.dumps writes them"
            )
        return found


def read_tensors(text: str, load_format: str | None) -> Named:
    """The named tensors of one payload: a list of pairs, or a `flattened_bucket`.

    Raises EngineError for anything else.
    """
    try:
        content = _Unpickler(io.BytesIO(base64.b64decode(text, validate=True))).load()
        if load_format == "flattened_bucket":
            return _split_flat_bucket(content)
        pairs = [(name, tensor) for name, tensor in content]
    except EngineError:
        raise
    # What damaged bytes make a pickle do can end in any exception.
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise EngineError(f"the tensors cannot be read ({what}); send them pickled") from error
    for name, tensor in pairs:
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise EngineError("the tensors are no pairs of a name and a tensor")
    return pairs


def _split_flat_bucket(content: Any) -> Named:
    data = cast("Tensor", content["flattened_tensor"]).view(torch.uint8)
    named: list[tuple[str, Tensor]] = []
    for meta in cast("Sequence[FlattenedTensorMetadata]", content["metadata"]):
        # A copy, since a dtype may need another alignment than the bytes have.
        flat = data[meta.start_idx : meta.end_idx].clone().view(meta.dtype)
        named.append((str(meta.name), flat.view(meta.shape)))
    return named
