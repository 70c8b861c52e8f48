"""Rows that a model computes one at a time by its own code, against which faster ways are held.

    row 0   a b c d e f g h i j k l     from position 0
    row 1   a b c d e f g h m n o p     begins like row 0
    row 2   q r s t u v w x y z a b     across a border: where a window ends, where factors change
    ...
    last    c d e f g h i j k l m n     up to the end of the context

A border is any number of the configuration that speaks of positions. Rows are short wherever they
lie, so a border at 128,000 costs no more than one at 128.

Suffixes: T tokens of a row, V vocabulary.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engine.local.demands import attending, foreign_code, text_config
from agentrl.engine.local.routing_replay import routed
from agentrl.errors import ConfigError

SHARED = 8
"""Tokens with which rows 0 and 1 both begin."""
_EXACT = 1e-3
_ROUNDING = 5e-2
"""Differences of logprobs, relative to these: the largest in float32, the mean in fewer bits.

In bfloat16 a model's own two ways to attend differ by nats in single tokens that nobody samples.
"""
_TOKENS = 12
_MOST_BORDERS = 4
_LONGEST_WINDOW = 160
"""A window up to this is crossed by a whole row."""
_BORDERS = ("window", "chunk", "position", "floor_scale", "context_len", "seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """What the model's own code says of one row."""

    ids_T: NDArray[np.int64]
    positions_T: NDArray[np.int64]
    logits_TV: Tensor
    experts: list[Tensor]
    """[T, chosen] by layer, of a mixture: where scores tie, each way to compute may choose."""

    def __len__(self) -> int:
        return len(self.ids_T)


@dataclass(frozen=True, slots=True)
class _Gap:
    """The largest difference in a logprob of a row."""

    relative: float
    """To what rounding explains."""
    nats: float
    row: ReferenceRow

    @property
    def small(self) -> bool:
        return self.relative <= 1


Compute = Callable[[Sequence[ReferenceRow]], Sequence[Tensor]]
"""The logits [T, V] of rows, all of them computed together."""


def reference_rows(model: PreTrainedModel, longest: int) -> list[ReferenceRow]:
    """The rows for a context of `longest` tokens, each computed alone, in evaluation."""
    was_training = model.training
    model.train(False)
    with torch.no_grad(), attending(model, "eager"), foreign_code(model):
        rows = [_compute_reference_row(model, *row) for row in _choose_trial_ids(model, longest)]
        if rows[0].experts:
            rows[1] = _rerun_row_by_others_experts(model, rows[0], rows[1])
    model.train(was_training)
    # One row may begin with a token whose own weights are no numbers; that fails its requests only.
    if all(row.logits_TV.isnan().all() for row in rows):
        raise ConfigError(
            f"{type(model).__name__} computes no numbers by its own code, expected logits; check "
            "its config.json (rope_parameters, the epsilon of its norms) and its weights"
        )
    return rows


def refuse_difference(
    what: str,
    model: PreTrainedModel,
    rows: Sequence[ReferenceRow],
    compute: Compute,
    low_precision: bool,
) -> None:
    """Compare a way to compute with the model's own.

    Raises:
        ConfigError: they differ, with the size, the place, and the context in which they would not.
    """
    with foreign_code(model):
        gap = _measure_logprob_gap(rows, compute, low_precision)
    if gap.small:
        return
    first, last = gap.row.positions_T[[0, -1]].tolist()
    raise ConfigError(
        f"{what} computes {type(model).__name__} otherwise than the model's own code does, by "
        f"{gap.nats:.2g} nats in the row at positions {first} to {last} of a batch of {len(rows)}; "
        f"{_advise_context_length(model, rows, compute, low_precision)}"
    )


def _advise_context_length(
    model: PreTrainedModel, rows: Sequence[ReferenceRow], compute: Compute, low_precision: bool
) -> str:
    """The longest context in which nothing differs, if there is one."""
    for border in sorted(_collect_length_borders(model), reverse=True):
        below = [row for row in rows if row.positions_T[-1] < border]
        if 1 < len(below) < len(rows) and _measure_logprob_gap(below, compute, low_precision).small:
            return f"set engine.context_length to at most {border}"
    return "choose another model"


def _rerun_row_by_others_experts(
    model: PreTrainedModel, first: ReferenceRow, second: ReferenceRow
) -> ReferenceRow:
    """The second row with the first one's choice of experts where they are alike."""
    experts = [
        torch.cat([ours[:SHARED], theirs[SHARED:]])
        for ours, theirs in zip(first.experts, second.experts, strict=True)
    ]
    return _compute_reference_row(model, second.ids_T, 0, experts)


def _compute_reference_row(
    model: PreTrainedModel,
    ids: NDArray[np.int64],
    first: int,
    experts: Sequence[Tensor] | None = None,
) -> ReferenceRow:
    positions = np.arange(first, first + len(ids))
    with routed(model, experts) as noted:
        output = model(
            input_ids=torch.from_numpy(ids)[None].to(model.device),
            position_ids=torch.from_numpy(positions)[None].to(model.device),
            use_cache=False,
        )
    return ReferenceRow(
        ids_T=ids,
        positions_T=positions,
        logits_TV=output.logits[0].float(),
        experts=[chosen for chosen in noted if len(chosen)],
    )


def _choose_trial_ids(
    model: PreTrainedModel, longest: int
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Ids and first positions."""
    rng = np.random.default_rng(0)
    embeddings: Any = model.get_input_embeddings()
    vocab = int(embeddings.weight.shape[0])
    num = min(_TOKENS, longest)
    ids = rng.integers(vocab, size=num)
    pad = text_config(model).pad_token_id
    if isinstance(pad, int) and 0 <= pad < vocab:
        # Some code takes a place with this id for no token at all.
        ids[num // 3] = pad
    yield ids, 0
    yield np.concatenate([ids[:SHARED], rng.integers(vocab, size=num - len(ids[:SHARED]))]), 0
    borders = _collect_length_borders(model)
    firsts = {border - num // 2 for border in borders} | {longest - num}
    for first in sorted(f for f in firsts if 0 < f <= longest - num)[-_MOST_BORDERS:]:
        yield rng.integers(vocab, size=num), first
    near = [border for border in borders if border < min(longest, _LONGEST_WINDOW)]
    if near:
        yield rng.integers(vocab, size=min(max(near) + num // 2, longest)), 0


def _collect_length_borders(model: PreTrainedModel) -> set[int]:
    config: Any = text_config(model)
    settings: Any = config.to_dict()
    return set(_find_borders_in_settings(settings))


def _find_borders_in_settings(settings: dict[str, Any]) -> Iterator[int]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _find_borders_in_settings(cast("dict[str, Any]", value))
        elif type(value) in (int, float) and value >= 2 and any(part in key for part in _BORDERS):
            yield int(value)


def _measure_logprob_gap(
    rows: Sequence[ReferenceRow], compute: Compute, low_precision: bool
) -> _Gap:
    gaps = [_Gap(0.0, 0.0, rows[0])]
    for row, logits_TV in zip(rows, compute(rows), strict=True):
        theirs = torch.log_softmax(row.logits_TV, dim=-1)
        ours = torch.log_softmax(logits_TV.to(theirs), dim=-1)
        # What is not finite in the model's own pass is the weights' fault; sampling finds it.
        finite = torch.isfinite(theirs)
        if finite.any():
            sizes = theirs[finite].abs()
            apart = (ours[finite] - theirs[finite]).abs().nan_to_num(nan=torch.inf)
            if low_precision:
                over = float(apart.mean()) / max(1.0, float(sizes.mean())) / _ROUNDING
            else:
                over = float(apart.max()) / max(1.0, float(sizes.max())) / _EXACT
            gaps.append(_Gap(over, float(apart.max()), row))
    return max(gaps, key=lambda gap: gap.relative)
