"""`RewardTrainer`: a language model's body with a head of one score, from pairs of answers.

Suffixes: P pairs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch and transformers are typed in part only.

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from agentrl.engine.local.demands import text_config
from agentrl.errors import ConfigError, RunError
from agentrl.trainer.algorithms.preference import bradley_terry
from agentrl.trainer.config import TrainerConfig, learning_rate
from agentrl.trainer.device import memory_errors
from agentrl.trainer.export import export_hf
from agentrl.trainer.fsdp import in_pass, prepare
from agentrl.trainer.logprobs import predicting_states
from agentrl.trainer.model import check_trainable, make_optimizer
from agentrl.trainer.packing import PackedRows, common, find_places, pieces, tree
from agentrl.trainer.parallel_dims import Ranks

IdPair = tuple[Sequence[int], Sequence[int]]
"""The ids of two conversations, the one with the chosen answer first."""


class RewardTrainer:
    """Owns the float32 weights of a reward model in one process, and the optimizer."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: TrainerConfig,
        *,
        total_steps: int,
        device: torch.device,
    ) -> None:
        """Take the body of a language model, which is of no other use afterwards.

        Raises:
            ConfigError: it cannot be trained faithfully, or transformers has no head for its kind.
        """
        check_trainable(model)
        self.model, self.head = _make_scorer(model)
        self.model.train()
        prepare(self.model, config, Ranks(device=device))
        self._config, self._total_steps = config, total_steps
        self._optimizer = make_optimizer(self.model, config)
        self.step = 0
        """Optimizer steps taken."""

    def update(self, pairs: Sequence[IdPair]) -> float:
        """Take one step; returns the mean loss before it.

        Raises:
            RunError: the gradient is not finite.
        """
        total = 0.0
        for packed in self._pack_micro_batches(pairs):
            chosen_P, rejected_P = self._score_pairs(packed)
            share = bradley_terry(chosen_P, rejected_P) / len(pairs)
            torch.autograd.backward(share)
            total += float(share.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._config.max_grad_norm)
        if not math.isfinite(total) or not torch.isfinite(norm):
            raise RunError(
                f"the loss of step {self.step + 1} is {total} and its gradient norm {float(norm)}, "
                "not finite; lower --lr"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self._config, self._total_steps)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    @torch.no_grad()
    def margins(self, pairs: Sequence[IdPair]) -> NDArray[np.float64]:
        """[P] The score of each chosen conversation less that of the rejected."""
        scores = [self._score_pairs(packed) for packed in self._pack_micro_batches(pairs)]
        return torch.cat([chosen - rejected for chosen, rejected in scores]).cpu().double().numpy()

    def export(self, folder: Path, out: Path) -> Path:
        """Write what `reward_model:OUT` loads, with the tokenizer of `folder`."""
        return export_hf(self.model, folder, out)

    def _score_pairs(self, packed: PackedRows) -> tuple[Tensor, Tensor]:
        """[P] The scores of the chosen conversations, and of the rejected."""
        with memory_errors(self._config.token_budget):
            scores = in_pass(self.model, lambda: self.head(predicting_states(self.model, packed)))
        scores_P2 = scores.float().reshape(-1, 2)
        return scores_P2[:, 0], scores_P2[:, 1]

    def _pack_micro_batches(self, pairs: Sequence[IdPair]) -> Iterator[PackedRows]:
        """All pairs in their order, so many at a time as the budget has room for."""
        waiting: list[NDArray[np.int32]] = []
        room = 0
        padding = text_config(self.model).pad_token_id
        for pair in pairs:
            whole = [np.array(ids, dtype=np.int32)[:, None] for ids in pair]
            # transformers reads a score at the last id that is no padding.
            rows = [row[: np.flatnonzero(row != padding).max(initial=0) + 1] for row in whole]
            cost = len(rows[0]) + len(rows[1]) - common(*rows)
            if waiting and cost > room:
                yield _pack_preference_rows(waiting)
                waiting = []
            room = (room if waiting else self._config.token_budget) - cost
            waiting += rows
        yield _pack_preference_rows(waiting)


def _make_scorer(model: PreTrainedModel) -> tuple[PreTrainedModel, nn.Linear]:
    """The sequence-classification model with the body of a language model; its head, of zeros."""
    body = cast(PreTrainedModel, model.base_model)
    kinds = cast(Any, AutoModelForSequenceClassification)
    model.config.num_labels = 1
    scorer = head = None
    with suppress(ValueError), torch.device("meta"):
        scorer = cast(PreTrainedModel, kinds.from_config(model.config))
        head = getattr(scorer, "score", None)
    if (
        scorer is None
        or not isinstance(head, nn.Linear)
        or type(scorer.base_model) is not type(body)
    ):
        raise ConfigError(
            f"{type(model).__name__} has no form with a head of scores in transformers "
            "(ForSequenceClassification); choose another model"
        )
    head.to_empty(device=body.device)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    setattr(scorer, scorer.base_model_prefix, body)
    scorer.config = body.config  # one object, by which the attention is chosen
    return scorer, head


def _pack_preference_rows(rows: Sequence[NDArray[np.int32]]) -> PackedRows:
    """Pairs of rows one after the other, of which the last token of each row is asked about."""
    lengths = list(map(len, rows))
    shared = [common(rows[i - 1], row) if i % 2 else 0 for i, row in enumerate(rows)]
    parts = pieces(lengths, shared)
    layout = tree(parts, max(lengths))
    nothing = np.zeros(len(rows), dtype=np.int64)
    return PackedRows(
        ids_P=np.concatenate([rows[p.first][p.start : p.stop, 0] for p in parts]).astype(np.int64),
        positions_P=np.concatenate([np.arange(p.start, p.stop) for p in parts]),
        tree=layout,
        predictors_K=np.array([places[-1] for places in find_places(parts, layout, lengths)]),
        targets_K=nothing,
        source_K=nothing,
    )
