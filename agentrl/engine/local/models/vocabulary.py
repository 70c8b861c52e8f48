"""Rows of a model's matrices that belong to no token, as where their number is rounded up.

They are left out of the distribution, by the engine that samples and by the trainer alike: no such
id can be sampled, and both take their softmax over the tokenizer's ids.
"""

# pyright: reportUnknownMemberType=false
# (parts of torch and transformers are not typed)

from torch import Tensor
from transformers import PreTrainedModel

from agentrl.errors import ConfigError

_IDS = "agentrl_ids"


def limit_ids(model: PreTrainedModel, num_ids: int) -> None:
    """Leave out the rows from `num_ids` on; raises ConfigError if the model has fewer rows."""
    matrix = model.get_input_embeddings().weight
    assert isinstance(matrix, Tensor)
    rows = matrix.shape[0]
    if rows < num_ids:
        raise ConfigError(
            f"the tokenizer has {num_ids} ids, but the matrix of {type(model).__name__} has {rows} "
            "rows: it is another model's; put the model's own tokenizer.json there"
        )
    setattr(model, _IDS, num_ids)


def known_ids(model: PreTrainedModel) -> int | None:
    """How many ids the distribution is over; None for all rows."""
    ids: int | None = getattr(model, _IDS, None)
    return ids
