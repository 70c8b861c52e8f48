"""What functions over a batch have to give: one number for each of its tokens.

Suffix: N tokens of the batch.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from agentrl.boundary import place_of
from agentrl.errors import RunError
from agentrl.tools import user_code
from agentrl.types import Batch


def call_on_batch(label: str, function: Callable[[Batch], object], batch: Batch) -> object:
    """What a function gives for a batch that it can only read; raises RunError where it fails."""
    with user_code(label, fault=RunError):
        try:
            return function(batch.read_only())
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            raise RunError(
                f"{label} writes into the batch{place_of(error)}; let it copy the array first"
            ) from error


def token_array_fault(values_N: object, batch: Batch) -> str | None:
    """What is wrong with a function's numbers for a batch, after its name."""
    expected = f"expected a float32 array of {batch.num_tokens}, one for each token of the batch"
    if type(values_N) is not np.ndarray:
        return f"gave a {type(values_N).__name__}, {expected}"
    found = cast("NDArray[np.float32]", values_N)
    if found.shape != (batch.num_tokens,) or found.dtype != np.float32:
        return f"gave an array of {found.dtype} of shape {found.shape}, {expected}"
    return _name_first_fault(found, ~np.isfinite(found), batch, "expected finite numbers")


def weights_fault(weights_N: object, batch: Batch) -> str | None:
    """The same of weights, which are at least 0, and 0 where nothing is trained."""
    if fault := token_array_fault(weights_N, batch):
        return fault
    found = cast("NDArray[np.float32]", weights_N)
    return _name_first_fault(found, found < 0, batch, "expected at least 0") or _name_first_fault(
        found, (found != 0) & ~batch.mask_N, batch, "which is not trained: expected 0"
    )


def _name_first_fault(
    found_N: NDArray[np.float32], wrong_N: NDArray[np.bool_], batch: Batch, expected: str
) -> str | None:
    if not wrong_N.any():
        return None
    token = int(wrong_N.argmax())
    row = int(np.searchsorted(batch.offsets_R1, token, side="right")) - 1
    episode = batch.episode_ids[int(batch.episode_R[row])]
    return f"gave {found_N[token]} for token {token} of the batch (episode {episode}), {expected}"
