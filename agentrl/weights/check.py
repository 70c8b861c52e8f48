"""What is refused before an engine has it; the old weights serve on then."""

# pyright: reportUnknownMemberType=false
# (parts of torch are not typed)

import asyncio
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.weights.plan import Bucket
from agentrl.weights.shared import Shared
from agentrl.weights.source import SlicedSource

Sums = Mapping[tuple[int, str], float]
"""By rank of the trainer and tensor: weights with other sums are other weights."""


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise EngineError if a number of new weights is not finite."""
    if not torch.isfinite(tensor).all():
        raise _make_weights_not_finite_error(name)


async def written(
    weights: SlicedSource, bucket: Bucket, memory: Shared, dtype: torch.dtype, timeout_s: float
) -> Sums:
    """Have a bucket written, and every byte accounted for; gives what was summed on the way.

    Raises:
        EngineError: numbers that are not finite, a rank that wrote less than it should, or not in
            time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            found = await weights.write(bucket, memory.handle, str(dtype).split(".")[1])
    except TimeoutError as error:
        raise EngineError(
            f"the trainer did not write its slices of the weights within {timeout_s:g} s; look at "
            "its ranks, or raise engine.timeout_s"
        ) from error
    for rank, one in enumerate(found):
        planned = bucket.planned_bytes(rank, dtype.itemsize)
        if one.num_bytes != planned:
            raise EngineError(
                f"rank {rank} of the trainer wrote {one.num_bytes:,} bytes of the weights, "
                f"expected {planned:,}; the old ones stay"
            )
    sums = {(i, name): total for i, one in enumerate(found) for name, total in one.sums.items()}
    for (_, name), total in sums.items():
        if not math.isfinite(total):
            raise _make_weights_not_finite_error(name)
    return sums


def _make_weights_not_finite_error(name: str) -> EngineError:
    return EngineError(
        f"the new weights have numbers in {name} that are not finite; the old ones stay"
    )
