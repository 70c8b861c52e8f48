"""Load a model folder into memory, quietly and whole, but for rows that belong to no token.

Those are there where a vocabulary's size is rounded up. The engine that samples and the trainer
alike leave them out: no such id can be sampled, and both take their softmax over the tokenizer's
ids.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.local.models.check import (
    check_files,
    check_report,
    library_errors,
    read_settings,
    refuse_tensors,
)
from agentrl.engine.local.models.quiet import quiet
from agentrl.engine.local.models.resolve import check_folder
from agentrl.errors import ConfigError

# pyright: reportUnknownMemberType=false
# (parts of torch and transformers are not typed)


DType = Literal["auto", "float32", "bfloat16"]
_DTYPES: dict[str, torch.dtype | Literal["auto"]] = {
    "auto": "auto",
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
_IDS = "agentrl_ids"


def load_model(
    folder: Path, dtype: DType = "float32", *, device: str = "cpu", num_ids: int | None = None
) -> PreTrainedModel:
    """The causal language model of a folder, in eval mode, every weight as its files have it.

    Rows of its matrices from `num_ids` on are left out, as `limit_ids` does.

    Raises ConfigError if the folder is not a usable model, as `check_files` does and for numbers
    that are not finite.
    """
    check_folder(folder)
    model = load_whole(folder, AutoModelForCausalLM, dtype, device=device)
    if num_ids is not None:
        limit_ids(model, num_ids)
    return model


def load_whole(folder: Path, auto: Any, dtype: DType, *, device: str) -> PreTrainedModel:
    """The model of a kind that a class of transformers knows; raises as `load_model` does."""
    outline = check_files(folder, auto)
    sdpa = outline._supports_sdpa  # pyright: ignore[reportPrivateUsage]  # asked nowhere else
    with quiet(), library_errors(folder):
        model, report = auto.from_pretrained(
            folder,
            config=read_settings(folder),
            dtype=_DTYPES[dtype],
            attn_implementation="sdpa" if sdpa else "eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    check_report(folder, report)
    # What no header says: numbers, and whether two tied tensors are one.
    tied: dict[str, str] = model.get_expanded_tied_weights_keys(all_submodels=True)
    find: Callable[[str], object] = model.get_parameter_or_buffer
    apart = [f"{a} and {b}" for a, b in tied.items() if find(a) is not find(b)]
    if apart:
        raise ConfigError(
            f"{folder}: {apart[0]} are one tensor by tie_word_embeddings of config.json, but two "
            "that differ in the files; set it to false, or save the model again"
        )
    refuse_tensors(folder, {"not finite": set(not_finite(model.named_parameters()))})
    nn.Module.to(model, torch.device(device))
    model.train(False)
    return cast(PreTrainedModel, model)


def not_finite(named: Iterable[tuple[str, Tensor]]) -> Iterator[str]:
    """The names of tensors with numbers that are infinite or none at all."""
    for name, tensor in named:
        # The sum costs no memory, but may overflow by itself.
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            yield name


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
