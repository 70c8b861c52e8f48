"""Is a folder's model whole? Said from its config and the headers of its files, in seconds.

The loader of transformers fills what a file lacks with random numbers, passes over what it does not
know, and says so in a report. Here it loads tensors without numbers, and the report is read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (parts of torch, safetensors and transformers are not typed)

import contextlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import __version__ as transformers_version

from agentrl.engine.experts import check_chosen
from agentrl.engine.local.models.files import read_json, weight_files, weight_map
from agentrl.engine.local.models.quiet import quiet
from agentrl.engine.local.models.settings import check_numbers, check_sizes, settings_of
from agentrl.errors import ConfigError

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_QUANTIZED = ("quantization_config", "compression_config")
_SHAPE = (
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
"""What engine and trainer read of a config."""
_EXPERT = re.compile(r"(?P<stack>.*\.experts)\.(?P<number>\d+)\.(?P<leaf>.*)")
_SHOWN = 3
"""Names of tensors in a sentence."""

_LONGEST = 250
"""Characters of what a library says."""

_RAISED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    UnpicklingError,
    ValueError,
)
"""What libraries raise over a config or a file that they cannot make a model of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it; torch's name for what safetensors has not."""


@contextmanager
def library_errors(folder: Path) -> Generator[None]:
    """Say in one sentence that a library can make no model of a folder."""
    try:
        yield
    except ConfigError:
        raise
    except _RAISED as e:
        said = " ".join(str(e).split())[:_LONGEST].rstrip(".")
        raise ConfigError(
            f"{folder}: transformers can make no model of it ({type(e).__name__}: {said}); check "
            "its config.json and its weights, or download them again"
        ) from e


def check_files(folder: Path, auto: Any = AutoModelForCausalLM) -> PreTrainedModel:
    """The folder's model without numbers, all on `meta`, once its files are found to be whole.

    `auto` is the class of transformers that knows the models of a kind.

    Raises ConfigError, with the names, for tensors that are missing, unexpected, of another shape
    or no plain floating-point numbers, and for a config of which no model can be made.
    """
    raw = _read_plain_model_config(folder)
    stored = stored_tensors(folder)
    shapes = [each.shape for each in stored.values()]
    check_numbers(folder / "config.json", raw)
    check_sizes(folder / "config.json", raw, shapes)
    check_chosen(folder)
    _check_generation_config(folder)
    settings = read_settings(folder)
    if type(settings) not in auto._model_mapping:
        raise ConfigError(
            f"{folder}: {settings.model_type!r} is the model_type of no model that "
            f"{auto.__name__} knows; give the folder of a causal language model"
        )
    _check_experts_complete(folder, stored)
    empty = {name: torch.empty(each.shape, device="meta") for name, each in stored.items()}
    with quiet(), library_errors(folder):
        with torch.device("meta"):
            outline: Any = auto.from_config(
                settings, attn_implementation="eager", trust_remote_code=False
            )
        model, report = type(outline).from_pretrained(
            None,
            config=outline.config,
            state_dict=empty,
            device_map={"": "meta"},
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    check_report(folder, report, not_plain=_find_unusable_dtypes(model, stored))
    _check_rotary_frequencies(folder, model)
    unknown = [key for key in _SHAPE if not isinstance(getattr(model.config, key, None), int)]
    if unknown:
        raise ConfigError(
            f"{folder}: {type(model).__name__} is no plain transformer over text (its config has "
            f"no {', '.join(unknown)}); choose another model"
        )
    return cast(PreTrainedModel, model)


def _check_rotary_frequencies(folder: Path, outline: PreTrainedModel) -> None:
    """Raise ConfigError if positions are turned by frequencies that are no numbers, or backwards.

    They follow from the config alone, by the model's own code.
    """
    kinds = {type(module): module for module in outline.modules() if hasattr(module, "config")}
    for kind, module in kinds.items():
        if not any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)):
            continue
        with contextlib.suppress(TypeError):  # it takes other arguments: a pass will tell
            made: Any = kind(module.config)
            for fault in _find_rotary_faults(made):
                found = json.dumps(made.config.rope_parameters, default=str)[:200]
                raise ConfigError(
                    f"{folder / 'config.json'}: rope_parameters {found} gives positions {fault}; "
                    "correct it, or download the config again"
                )


def _find_rotary_faults(module: Any) -> Iterator[str]:
    for name, buffer in module.named_buffers():
        if not (buffer.isfinite() & (buffer >= 0)).all():
            yield f"frequencies ({name}) that are not finite or below 0"
        for key, value in settings_of(module.config.rope_parameters):
            if isinstance(value, list) and key.endswith("_factor") and len(value) != buffer.numel():
                yield f"{buffer.numel()} frequencies, but {len(value)} numbers of {key}"
    for name, value in vars(module).items():
        if name.endswith("attention_scaling") and not 0 < value < math.inf:
            yield f"a factor of attention ({name}) that is {value}"


def read_settings(folder: Path) -> PreTrainedConfig:
    """The folder's config; raises ConfigError if it is none of a plain model."""
    _read_plain_model_config(folder)
    with quiet(), library_errors(folder):
        settings: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        # What else a pass gives back is nothing that is asked for here; it stops saving, too.
        settings.return_dict = True
        settings.output_attentions = settings.output_hidden_states = False
        return settings


def _read_plain_model_config(folder: Path) -> object:
    """The content of `config.json`, of a known model whose weights are plain."""
    path = folder / "config.json"
    raw = read_json(path)
    kind = cast("dict[str, object]", raw).get("model_type") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"{path}: model_type {kind!r} is unknown to transformers {transformers_version}; "
            "choose another model, or install a version that knows it"
        )
    for key, value in settings_of(raw):
        if key.rpartition(".")[2] in _QUANTIZED and value:
            known = isinstance(value, dict)
            method = cast("dict[str, object]", value).get("quant_method") if known else value
            raise ConfigError(
                f"{path}: the weights are quantized ({key}: {method}), which can neither be "
                "trained nor sampled with exactly; use the model's plain weights, or save them "
                "dequantized"
            )
    return raw


def stored_tensors(folder: Path) -> Mapping[str, Stored]:
    """The tensors in the files of a folder's weights, from their headers.

    Raises ConfigError if a file cannot be read, if two have the same tensor, or if the index names
    one that is not there.
    """
    stored: dict[str, Stored] = {}
    place: dict[str, str] = {}
    for path in weight_files(folder):
        with library_errors(folder):
            found = dict(
                _read_safetensors_header(path)
                if path.suffix == ".safetensors"
                else _read_pickled_shapes(path)
            )
        twice = found.keys() & stored.keys()
        if twice:
            raise ConfigError(
                f"{path} and {place[min(twice)]} both have {_join_names(twice)}; download all "
                "files again"
            )
        stored |= found
        place |= dict.fromkeys(found, path.name)
    wrong = {name for name, file in (weight_map(folder) or {}).items() if place.get(name) != file}
    if wrong:
        raise ConfigError(
            f"{folder}: the index of its weights names {_join_names(wrong)} in a file that has "
            "no such tensor; download all files again"
        )
    return stored


def check_report(folder: Path, report: Mapping[str, Any], not_plain: Collection[str] = ()) -> None:
    """Raise ConfigError, with the names, unless a loading report of transformers is empty."""
    shapes = {
        f"{name} {[*found]} instead of {[*expected]}"
        for name, found, expected in report["mismatched_keys"]
    }
    refuse_tensors(
        folder,
        {
            "missing": report["missing_keys"],
            "unexpected": report["unexpected_keys"],
            "of another shape": shapes,
            "no plain floating-point numbers": not_plain,
        },
    )


def refuse_tensors(folder: Path, faults: Mapping[str, Collection[str]]) -> None:
    """Raise ConfigError for the tensors of each fault, if there are any."""
    said = [f"{what}: {_join_names(names)}" for what, names in faults.items() if names]
    if said:
        raise ConfigError(
            f"{folder}: its weights are not those of the model that its config.json describes "
            f"({'; '.join(said)}); download all files again, or correct the config"
        )


def _check_generation_config(folder: Path) -> None:
    """Raise ConfigError for a `generation_config.json` with which no model is loaded."""
    path = folder / "generation_config.json"
    if path.exists():
        if not isinstance(read_json(path), dict):
            raise ConfigError(f"{path} is no JSON object; download it again, or remove it")
        with quiet(), library_errors(folder):
            GenerationConfig.from_pretrained(folder)


def _read_safetensors_header(path: Path) -> Iterator[tuple[str, Stored]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # no mapping
            tensor = file.get_slice(name)
            yield name, Stored(shape=tuple(tensor.get_shape()), dtype=tensor.get_dtype())


def _read_pickled_shapes(path: Path) -> Iterator[tuple[str, Stored]]:
    known = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"}
    known[torch.bfloat16] = "BF16"
    content: object = torch.load(path, map_location="meta", weights_only=True)
    if not isinstance(content, dict):
        raise TypeError(f"{path.name} holds a {type(content).__name__}, expected a dict of tensors")
    for name, value in cast("dict[str, Any]", content).items():
        yield name, Stored(shape=tuple(value.shape), dtype=known.get(value.dtype, str(value.dtype)))


def _check_experts_complete(folder: Path, stored: Mapping[str, Stored]) -> None:
    """Raise ConfigError unless each list of experts is whole: the loader stacks those it finds."""
    experts: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    count: dict[str, int] = defaultdict(int)
    for name, tensor in stored.items():
        if match := _EXPERT.fullmatch(name):
            stack, number, leaf = match["stack"], int(match["number"]), match["leaf"]
            experts[stack, leaf][number] = tensor.shape
            count[stack] = max(count[stack], number + 1)
    missing: set[str] = set()
    shapes: set[str] = set()
    for (stack, leaf), found in experts.items():
        usual = Counter(found.values()).most_common(1)[0][0]
        missing |= {f"{stack}.{i}.{leaf}" for i in range(count[stack]) if i not in found}
        shapes |= {
            f"{stack}.{i}.{leaf} {[*shape]} instead of {[*usual]}"
            for i, shape in found.items()
            if shape != usual
        }
    refuse_tensors(folder, {"missing": missing, "of another shape": shapes})


def _find_unusable_dtypes(model: PreTrainedModel, stored: Mapping[str, Stored]) -> set[str]:
    """Tensors of parameters that are no floating-point numbers, or such as need scales."""
    prefix = f"{model.base_model_prefix}."
    parameters = {name for name, _ in model.named_parameters()}
    parameters |= {name.removeprefix(prefix) for name in parameters}
    return {
        f"{name} ({tensor.dtype})"
        for name, tensor in stored.items()
        if tensor.dtype not in _FLOATS
        and (name in parameters or name.endswith(".weight") or tensor.dtype.startswith("F"))
    }


def _join_names(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:_SHOWN])
    return f"{first} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else first
