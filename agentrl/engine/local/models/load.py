"""Load a model folder into memory, quietly."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from agentrl.engine.local.models.resolve import check_folder
from agentrl.errors import ConfigError

_DTYPES: dict[str, torch.dtype | Literal["auto"]] = {
    "auto": "auto",
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}


def load_model(
    folder: Path,
    dtype: Literal["auto", "float32", "bfloat16"] = "float32",
    *,
    device: str = "cpu",
    attention: str = "sdpa",
) -> PreTrainedModel:
    """The causal language model of a folder, in eval mode.

    Raises ConfigError if the folder is not a usable model or if the model has dropout, with which
    the trainer's logprobs would differ from the sampled ones.
    """
    check_folder(folder)
    with quiet():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=_DTYPES[dtype], attn_implementation=attention, local_files_only=True
        )
    _refuse_dropout(model, folder)
    nn.Module.to(model, torch.device(device))
    model.train(False)
    return model


@contextmanager
def quiet() -> Generator[None]:
    """Keep transformers from writing progress bars and warnings."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _refuse_dropout(model: PreTrainedModel, folder: Path) -> None:
    settings: dict[str, object] = model.config.to_dict()
    active = {
        name: value
        for name, value in settings.items()
        if "dropout" in name and isinstance(value, float | int) and value > 0
    }
    if active:
        name, value = next(iter(active.items()))
        raise ConfigError(
            f"{folder / 'config.json'}: {name} is {value}, expected 0, since dropout makes the "
            "trainer's logprobs differ from the sampled ones; set it to 0"
        )
