"""What the engine computes of a model, held against the model's own code before it serves.

Three passes do what the stepper's do, with rows of `reference`: pieces of prompts, a copied prefix,
decoding rows with idle ones between them, and both in one pass.

Suffixes: N tokens of a pass, R rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engine.local.attention import FlatPass, lay_out
from agentrl.engine.local.demands import Heads
from agentrl.engine.local.reference import SHARED, ReferenceRow, reference_rows, refuse_difference
from agentrl.engine.local.routing_replay import routed
from agentrl.engine.local.rows import RowCache
from agentrl.errors import ConfigError


def check_engine(model: PreTrainedModel, heads: Heads, longest: int) -> None:
    """Raise ConfigError unless the engine's passes give what the model's own do.

    Args:
        model: the engine's, with its attention.
        heads: the shape of its keys.
        longest: most tokens of a row.
    """
    low = model.dtype.itemsize < 4
    rows = reference_rows(model, longest)
    with torch.inference_mode():
        refuse_difference(
            "the local engine", model, rows, lambda r: _Passes(model, heads, r).run(), low
        )


class _Passes:
    """Rows on their way through a cache."""

    def __init__(self, model: PreTrainedModel, heads: Heads, rows: Sequence[ReferenceRow]) -> None:
        self._model = model
        self._rows = rows
        self._cache = RowCache(heads, model.dtype, model.device)
        self._cache.grow(len(rows), max(map(len, rows)))
        self._lengths_R = np.array([len(row) for row in rows])
        self._filled_R = np.zeros(len(rows), dtype=np.int64)
        self._found: list[list[Tensor]] = [[] for _ in rows]

    def run(self) -> list[Tensor]:
        """The logits of each row."""
        odd_R = np.arange(len(self._rows)) % 2 == 1
        half_R = self._lengths_R // 2
        half_R[1] = 0
        self._run_pass_over_next_tokens(half_R)
        # Row 1 begins with what row 0 has computed.
        shared = min(SHARED, int(self._filled_R[0]))
        self._cache.copy(0, 1, shared)
        self._filled_R[1] = shared
        self._found[1] = [logits[:shared] for logits in self._found[0]]
        left_R = self._lengths_R - self._filled_R
        self._run_pass_over_next_tokens(np.where(odd_R, left_R - 1, np.minimum(left_R, 1)))
        self._run_pass_over_next_tokens(self._lengths_R - self._filled_R)
        return [torch.cat(found) for found in self._found]

    def _run_pass_over_next_tokens(self, num_R: NDArray[np.int64]) -> None:
        """One pass over the next tokens of each row."""
        if not num_R.any():
            return
        spans = [(row, num) for row, num in enumerate(num_R.tolist()) if num > 1]
        flat = lay_out(self._cache, self._filled_R, np.flatnonzero(num_R == 1), spans)
        logits_NV = self._forward_flat_pass(flat)
        if sorted(flat.plan.calls) != list(range(self._cache.heads.num_layers)):
            raise ConfigError(
                f"{type(self._model).__name__} called the engine's attention in layers "
                f"{flat.plan.calls}, expected each of {self._cache.heads.num_layers} once; choose "
                "another model"
            )
        for row in np.flatnonzero(num_R).tolist():
            mine_N = (flat.owners_N == row) & (flat.writes_N < self._cache.length)
            self._found[row].append(logits_NV[torch.from_numpy(mine_N)])
        self._filled_R += num_R

    def _forward_flat_pass(self, flat: FlatPass) -> Tensor:
        places: list[tuple[int, int]] = list(
            zip(flat.owners_N.tolist(), flat.positions_N.tolist(), strict=True)
        )
        ids_N = torch.tensor([self._rows[row].ids_T[at] for row, at in places])
        positions_N = torch.tensor([self._rows[row].positions_T[at] for row, at in places])
        device = self._model.device
        # Backwards, so that a model that gives other places than those asked for is seen.
        keep_N = torch.arange(len(places), device=device).flip(0)
        experts = [
            torch.stack([self._rows[row].experts[layer][at] for row, at in places])
            for layer in range(len(self._rows[0].experts))
        ]
        with routed(self._model, experts) if experts else nullcontext():
            output = self._model(
                input_ids=ids_N[None].to(device),
                position_ids=positions_N[None].to(device),
                use_cache=False,
                logits_to_keep=keep_N,
                plan=flat.plan,
            )
        logits: Tensor = output.logits[0]
        if len(logits) != len(places):
            raise ConfigError(
                f"{type(self._model).__name__} gives the logits of {len(logits)} tokens where "
                f"{len(places)} were asked for; choose another model"
            )
        return logits.flip(0).cpu()
