"""The experts of a mixture of experts, as a side channel of the token record.

A row stands at the token that its experts helped to predict, like a logprob: what an engine
computed at position t is known when token t + 1 is.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.engine.reshard import Box

CHANNEL = "routed_experts"
"""[T, layers, chosen]"""


class ExpertChannels(TypedDict, total=False):
    """Arguments of `seal`."""

    channels: Mapping[str, NDArray[np.generic]]
    prompt_channels: Mapping[str, NDArray[np.generic]]


def expert_channels(experts: NDArray[np.integer], num_prompt: int) -> ExpertChannels:
    """Of a completion, from the experts of all tokens but its last, [T - 1, layers, chosen]."""
    predicted = np.pad(experts.astype(np.int16), ((1, 0), (0, 0), (0, 0)))
    return {
        "channels": {CHANNEL: predicted[num_prompt:]},
        "prompt_channels": {CHANNEL: predicted[:num_prompt]},
    }


def experts_per_token(folder: Path) -> int:
    """How many experts a model folder's model sends a token to in each layer; 0 if it is dense."""
    settings = cast("dict[str, object]", orjson.loads((folder / "config.json").read_bytes()))
    number = settings.get("num_experts_per_tok")
    return number if isinstance(number, int) else 0


def by_expert(name: str, shape: Sequence[int]) -> Iterator[tuple[str, Box]]:
    """What files have for a tensor that stacks experts: their names, and the box of each in it.

    Nothing for other tensors.
    """
    stack, _, leaf = name.rpartition(".")
    if not stack.endswith(".experts") or leaf not in ("gate_up_proj", "down_proj"):
        return
    num, rows, columns = shape
    halves = {"gate_proj": (0, rows // 2), "up_proj": (rows // 2, rows)}
    parts = {"down_proj": (0, rows)} if leaf == "down_proj" else halves
    for i in range(num):
        for part, between in parts.items():
            yield f"{stack}.{i}.{part}.weight", ((i, i + 1), between, (0, columns))
