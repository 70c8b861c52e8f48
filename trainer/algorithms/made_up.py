"""A small batch that nobody sampled, on which what users bring is tried before a run begins."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from agentrl.errors import AgentrlError, ConfigError
from agentrl.types import Batch


@contextmanager
def trial(on: str = "a made-up batch") -> Generator[None]:
    """What fails inside is a ConfigError, in one line, that says on what it was tried."""
    try:
        yield
    except AgentrlError as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{said}; it was tried on {on}") from error


def made_up_batch(needs: Sequence[str] = ()) -> Batch:
    """Four episodes of two tasks, the last of them in two segments; rewards differ within a task.

    Each segment has a token of the prompt, two trained ones and one of the environment between
    them. What only some need (values, state keys, parts ...) is there if it is named.
    """
    rows, tokens = 5, 20
    mask_N = np.tile([False, True, False, True], rows)
    return Batch(
        ids_N=np.arange(tokens, dtype=np.int32),
        mask_N=mask_N,
        logprobs_N=np.where(mask_N, -0.5, 0.0).astype(np.float32),
        sources_N=np.tile(np.array([0, 1, 2, 1], dtype=np.int8), rows),
        turns_N=np.array([*[0, 0, 0, 1] * 4, 2, 2, 2, 3], dtype=np.int16),
        versions_N=np.zeros(tokens, dtype=np.int32),
        marks_N=np.zeros(tokens, dtype=np.uint32),
        offsets_R1=np.arange(0, tokens + 1, 4),
        episode_R=np.array([0, 1, 2, 3, 3], dtype=np.int32),
        digests_R=(b"",) * rows,
        appends_A=np.zeros(0, dtype=np.int32),
        append_offsets_R1=np.zeros(rows + 1, dtype=np.int64),
        episode_ids=("made-up-0", "made-up-1", "made-up-2", "made-up-3"),
        group_E=np.array([0, 0, 1, 1], dtype=np.int32),
        rewards_E=np.array([1.0, 0.0, 0.25, 1.0]),
        temperature=1.0,
        turn_rewards_U=np.array([0.0, 1.0, 0.0, 0.0, 0.25, 0.0, 0.5, 0.0, 0.0, 0.5]),
        turn_offsets_E1=np.array([0, 2, 4, 6, 10]),
        keys_U=("a", "b", "a", None, "a", "b", "a", "b", "a", "b")
        if "state keys" in needs
        else None,
        parts_E={"one": np.array([1.0, 0.0, 0.0, 0.5])} if "score parts" in needs else {},
        greedy_E=np.array([0.5, 0.5, 0.0, 0.0]) if "greedy member" in needs else None,
        values_N=np.where(mask_N, np.float32(0.5), 0) if "critic" in needs else None,
        costs_E=np.array([0.0, 1.0, 0.0, 0.5]) if "cost" in needs else None,
        multiplier=0.5 if "cost" in needs else None,
        cost_values_N=np.where(mask_N, np.float32(0.25), 0)
        if {"cost", "critic"} <= set(needs)
        else None,
        reference_N=np.where(mask_N, np.float32(-0.7), 0)
        if {"reference", "teacher"} & {*needs}
        else None,
        proximal_N=np.where(mask_N, np.float32(-0.6), 0) if "proximal" in needs else None,
    )
