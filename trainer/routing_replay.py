"""Mixtures of experts: the trainer sends each token to the experts that the engine used.

Scores that nearly tie choose differently after rounding, and another expert is another model. What
the engine recorded (`agentrl.engine.experts`) is replayed, so that policy and behavior are
one distribution; the router is trained through the weights that it gives these experts.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import logging
from collections.abc import Generator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from agentrl.engine.experts import CHANNEL
from agentrl.engine.local.routing_replay import mixtures, routed
from agentrl.errors import RunError
from agentrl.trainer.packing import PackedRows
from agentrl.types import Batch

_LOG = logging.getLogger(__name__)


def warn_of_unrecorded(model: PreTrainedModel, batch: Batch) -> None:
    """Say that a mixture of experts is trained on what nobody recorded the experts of."""
    if batch.num_trained and CHANNEL not in batch.channels and mixtures(model):
        _LOG.warning(
            "%s is a mixture of experts, but the engine recorded none, so the trainer may send "
            "tokens to others than the engine did: watch the gap, or use an engine that records",
            type(model).__name__,
        )


@contextmanager
def replayed(model: PreTrainedModel, rows: PackedRows) -> Generator[None]:
    """Use the recorded experts inside, also where backward computes layers again.

    Without recorded experts the routers choose. Raises RunError if the record is of another model
    or lacks tokens.
    """
    if rows.experts_P is None:
        yield
        return
    num_layers, chosen = rows.experts_P.shape[1:]
    found = len(mixtures(model))
    if num_layers != found:
        raise RunError(
            f"the batch has the experts of {num_layers} layers, but {type(model).__name__} has "
            f"{found} with experts; train the model that the engine serves"
        )
    if chosen > 1:
        # A token never goes to one expert twice, so zeros say that nothing was recorded.
        missing = int((rows.experts_P[:, 0, 0] == rows.experts_P[:, 0, 1]).sum())
        if missing:
            raise RunError(
                f"{missing} of {len(rows.experts_P)} tokens have no recorded experts; use an "
                "engine that records those of prompts too"
            )
    experts = torch.from_numpy(rows.experts_P).to(model.device)
    with routed(model, list(experts.unbind(1))):
        yield
