"""What is set once per process: torch's threads, determinism, global seed; garbage collection."""

import gc

import torch

_YOUNG = 10_000
"""Objects between two collections. With Python's 700 they took a fifth of an agent loop's time,
since a turn makes hundreds of small objects and few cycles."""


def prepare_process(*, threads: int, deterministic: bool, seed: int) -> None:
    """Set the process up for a run; `threads` 0 leaves torch's own choice."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]  # typed in part
