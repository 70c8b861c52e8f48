"""The files of a model folder's weights: those that transformers reads, so that all readers agree.

A folder may hold others beside them (another library's copy, shards of an older download).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from agentrl.errors import ConfigError

_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The first that is there counts."""


def weight_files(folder: Path) -> list[Path]:
    """The file of all weights, or the shards that the index names.

    Raises ConfigError if there is none, or if the index cannot be read or names a file that is not
    there.
    """
    found = _find_weights_file(folder)
    if found is None:
        raise ConfigError(
            f"{folder} has no weights ({_NAMES[0]}); save the model into it or download all files"
        )
    return _list_shards_of_index(found) if found.suffix == ".json" else [found]


def weight_map(folder: Path) -> Mapping[str, str] | None:
    """The file of each tensor, as the index says; None where one file holds all of them.

    Raises ConfigError if the index cannot be read.
    """
    found = _find_weights_file(folder)
    return _read_weight_index(found) if found and found.suffix == ".json" else None


def read_json(path: Path) -> object:
    """The content of a JSON file; raises ConfigError if it has none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path} cannot be read as JSON ({e}); download it again") from e


def _find_weights_file(folder: Path) -> Path | None:
    return next((folder / name for name in _NAMES if (folder / name).is_file()), None)


def _list_shards_of_index(index: Path) -> list[Path]:
    # A name is looked for among the folder's own, so that any text may stand there.
    present = {path.name: path for path in index.parent.iterdir() if path.is_file()}
    names = sorted(set(_read_weight_index(index).values()))
    absent = [ascii(name[:60]) for name in names if name not in present]
    if absent:
        raise ConfigError(
            f"{index} names {', '.join(absent[:3])} ({len(absent)} of {len(names)} files), which "
            "the folder has not; download all files"
        )
    return [present[name] for name in names]


def _read_weight_index(path: Path) -> Mapping[str, str]:
    content = read_json(path)
    found = cast("dict[str, object]", content).get("weight_map") if isinstance(content, dict) else 0
    files = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    if not files or not all(isinstance(name, str) for name in files.values()):
        raise ConfigError(f"{path} has no table weight_map of files; download it again")
    return cast("dict[str, str]", files)
