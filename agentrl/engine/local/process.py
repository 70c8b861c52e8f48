"""What torch keeps per process: threads, determinism, the global seed."""

import torch


def prepare_process(*, threads: int, deterministic: bool, seed: int) -> None:
    """Set torch up for a run; `threads` 0 leaves torch's own choice."""
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]  # typed in part
