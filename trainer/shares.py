"""Which ranks get which rows: balanced by tokens, and no rank gets those of another.

    batch ─ Dealer ─▶ share of replica 0   rows 0 3 4   micro-batches [0 4] [3]
                    ▶ share of replica 1   rows 1 2     micro-batches [1 2] []

Whoever has the batch deals it, so that each row goes to the ranks that compute it and nowhere else;
they verify its record. The ranks of a replica share the tokens of its rows.

Suffixes: N tokens of a batch, R rows.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.tokens import verify_batch
from agentrl.trainer.algorithms.losses import CheckedLoss
from agentrl.trainer.algorithms.needs import ALL_ROWS
from agentrl.trainer.algorithms.value_targets import with_targets
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.micro_batches import cost, deal, split_over_ranks
from agentrl.trainer.objective import PolicyObjective
from agentrl.trainer.packing import num_read, trained_rows
from agentrl.trainer.parallel_dims import ParallelDims
from agentrl.trainer.updates import explain_nothing_to_train
from agentrl.types import Batch

_LOG = logging.getLogger(__name__)

OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "values": ("values_N", "cost_values_N"),
    "reference": ("reference_N", "divergence_N"),
    "proximal": ("proximal_N",),
}
"""What models say of a batch before its update, and where the batch has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the ranks of one replica get of a batch or mini-batch."""

    batch: Batch
    """Of its own rows, unless the loss looks at those of others too."""
    own_R: NDArray[np.bool_]
    """Which of these rows are its own."""
    rows_R: NDArray[np.int64]
    """Which rows of the batch that was dealt they are."""
    segments_R: NDArray[np.int64]
    """Which segment of its episode each is."""
    micros: Sequence[Sequence[int]]
    """Rows of each micro-batch with a gradient; as many as every other replica has."""
    measured: Sequence[Sequence[int]] = ()
    """Of those that have none."""
    nothing: str | None = None
    """Why no replica has a row with a gradient."""
    newest: int = -1
    """The version that is trained."""


class Dealer:
    """Deals batches to the replicas of one layout."""

    def __init__(
        self,
        config: TrainerConfig,
        layout: ParallelDims,
        *,
        width: int,
        longest: int,
        loss: CheckedLoss,
        is_quiet: bool = False,
    ) -> None:
        """Make one for a trainer.

        Args:
            config: of the trainer.
            layout: of its ranks.
            width: the model's hidden width.
            longest: most tokens of a row: that far the model was checked.
            loss: what the rows are trained by.
            is_quiet: another one warns.
        """
        self._config, self._layout, self._loss = config, layout, loss
        self._width, self._longest, self._warned = width, longest, is_quiet

    def for_pass(self, batch: Batch) -> list[Share]:
        """The rows with a trained token, for what models say of them."""
        rows = trained_rows(batch)
        return self._deal(batch, rows, np.ones(len(rows), dtype=np.bool_), rows)

    def for_update(self, batch: Batch) -> list[list[Share]]:
        """Of each replica its share of each mini-batch; every row is in one of them.

        Raises RunError for a batch that cannot be trained on.
        """
        rows = _find_weighted_rows(batch)
        objective = PolicyObjective(batch, self._loss, self._config)
        if self._config.has_critic and batch.values_N is not None and batch.num_trained:
            batch = with_targets(batch, self._config.critic)
        newest = batch.version
        if newest is None:
            newest = int(batch.versions_N.max(initial=-1))
        minibatch_R = np.zeros(batch.num_rows, dtype=np.int32)
        if batch.minibatch_E is not None:
            minibatch_R = batch.minibatch_E[batch.episode_R]
        dealt: list[list[Share]] = []
        for minibatch in np.unique(minibatch_R) if batch.num_rows else [0]:
            chosen_R = minibatch_R == minibatch
            mine = rows[chosen_R[rows]]
            active = objective.active(mine)
            shares = self._deal(batch, mine, active, np.flatnonzero(chosen_R))
            part = batch.take_rows(chosen_R)
            nothing = explain_nothing_to_train(part, active, self._config)
            dealt.append([replace(share, nothing=nothing, newest=newest) for share in shares])
        return [list(parts) for parts in zip(*dealt, strict=True)]

    def for_supervised(self, batch: Batch) -> list[Share]:
        """Of each replica its share, in which every row has a gradient."""
        rows = _find_weighted_rows(batch)
        active = np.ones(len(rows), dtype=np.bool_)
        nothing = explain_nothing_to_train(batch, active, self._config)
        shares = self._deal(batch, rows, active, np.arange(batch.num_rows))
        return [replace(share, nothing=nothing) for share in shares]

    def _deal(
        self,
        batch: Batch,
        rows: NDArray[np.int64],
        active: NDArray[np.bool_],
        known: NDArray[np.int64],
    ) -> list[Share]:
        """Deal the `known` rows, of which `rows` are computed, with a gradient where `active`."""
        self._check_lengths(batch, rows)
        budget, num = self._config.token_budget * self._layout.sequence, self._layout.data
        micros, measured = (
            split_over_ranks(batch, part, num_ranks=num, token_budget=budget, width=self._width)
            for part in (rows[active], rows[~active])
        )
        rest = np.setdiff1d(known, rows)
        lengths = np.diff(batch.offsets_R1)[rest]
        others = deal([cost(length, self._width) for length in lengths.tolist()], num)
        segments_R = _number_segments(batch)
        shares: list[Share] = []
        for mine, seen, other in zip(micros, measured, others, strict=True):
            own_R = np.zeros(batch.num_rows, dtype=np.bool_)
            own_R[[row for micro in (*mine, *seen) for row in micro]] = True
            own_R[rest[other]] = True
            sent_R = own_R
            if ALL_ROWS in self._loss.needs:
                sent_R = np.zeros_like(own_R)
                sent_R[known] = True
            number_R = np.cumsum(sent_R) - 1
            sent = np.flatnonzero(sent_R)
            shares.append(
                Share(
                    batch=batch.take_rows(sent_R),
                    own_R=own_R[sent],
                    rows_R=sent,
                    segments_R=segments_R[sent],
                    micros=[number_R[micro].tolist() if micro else [] for micro in mine],
                    measured=[number_R[micro].tolist() if micro else [] for micro in seen],
                )
            )
        return shares

    def _check_lengths(self, batch: Batch, rows: NDArray[np.int64]) -> None:
        """Say once that a row is longer than the budget; refuse one longer than the context."""
        budget = self._config.token_budget * self._layout.sequence
        longest = max((num_read(batch, row) for row in rows.tolist()), default=0)
        if longest > self._longest:
            raise RunError(
                f"a row has {longest} tokens, but the context holds {self._longest}; end episodes "
                "earlier or raise engine.context_length"
            )
        if longest > budget and not self._warned:
            self._warned = True
            _LOG.warning(
                "a row has %d tokens, more than the %d of a micro-batch; such rows are computed "
                "alone: raise trainer.token_budget, or lower rollout.max_context_tokens if memory "
                "runs out",
                longest,
                budget,
            )


def add_outputs(
    batch: Batch, shares: Sequence[Share], outputs: Sequence[Mapping[str, NDArray[np.float32]]]
) -> Batch:
    """The batch with what ranks computed of its trained tokens.

    Args:
        batch: what was dealt.
        shares: of each replica.
        outputs: of each rank by the names of `OUTPUTS`: a line for each of the batch's arrays, with
            an item for each trained token of the share, which is 0 where another rank has it.
    """
    added: dict[str, NDArray[np.float32]] = {}
    for name, arrays in OUTPUTS.items():
        for rank, found in enumerate(outputs):
            share = shares[rank * len(shares) // len(outputs)]
            chosen_R = np.zeros(batch.num_rows, dtype=np.bool_)
            chosen_R[share.rows_R] = True
            places = np.flatnonzero(np.repeat(chosen_R, np.diff(batch.offsets_R1)) & batch.mask_N)
            for array, line in zip(arrays, found.get(name, ()), strict=False):
                full_N = added.setdefault(array, np.zeros(batch.num_tokens, dtype=np.float32))
                full_N[places] += line
    return batch.with_fields(added)


def _number_segments(batch: Batch) -> NDArray[np.int64]:
    """[R] Which segment of its episode each row is."""
    order_R = np.argsort(batch.episode_R, kind="stable")
    sorted_R = batch.episode_R[order_R]
    found_R = np.empty(batch.num_rows, dtype=np.int64)
    found_R[order_R] = np.arange(batch.num_rows) - np.searchsorted(sorted_R, sorted_R)
    return found_R


def _find_weighted_rows(batch: Batch) -> NDArray[np.int64]:
    if batch.weights_N is None:
        raise RunError("the batch has no weights; call a normalisation before the update")
    if not batch.temperature > 0:
        raise RunError(
            f"the batch was sampled at temperature {batch.temperature}, expected above 0; "
            "greedy samples are for evaluation only"
        )
    try:
        return trained_rows(batch)
    except RunError:
        verify_batch(batch)  # if a record changed, that is why
        raise
