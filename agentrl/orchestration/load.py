"""A run's configuration from a file, flags and keywords, with the model's preset underneath."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.config import Loaded, load_config
from agentrl.config.draft import Value
from agentrl.config.flags import Argument
from agentrl.config.load import read_toml
from agentrl.engine.local.models.resolve import TINY
from agentrl.orchestration.config import SHORT_NAMES, RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.preflight import ENV_PRESETS, MODEL_PRESETS, PAIR_PRESETS
from agentrl.trainer.algorithms.presets import keys_of


def load_run_config(
    *,
    file: Path | None = None,
    flags: Sequence[Argument] = (),
    keywords: Mapping[str, object] | None = None,
    objects: Overrides = NO_OBJECTS,
) -> Loaded[RunConfig]:
    """Load and check a run's configuration; later layers win: preset, file, keywords, flags.

    Args:
        file: a TOML file.
        flags: command-line flags.
        keywords: dotted keys with values, from a caller in Python.
        objects: environments given as classes, by the names that the configuration uses.

    Raises:
        ConfigError: one line for each thing that is wrong.
    """
    return load_config(
        RunConfig,
        file=file,
        flags=flags,
        short=SHORT_NAMES,
        preset=_choose_presets,
        keywords=keywords,
        parameters={"env": lambda name: objects.env_class(name).Config},
    )


def _choose_presets(given: Mapping[str, Value]) -> list[tuple[Mapping[str, object], str]]:
    """What belongs to the algorithm, and to model and environments, each with its origin."""
    model = given["model"].value if "model" in given else TINY
    base = base_name(str(model))
    preset = dict(MODEL_PRESETS.get(base, {}))
    for key, entry in given.items():
        if re.fullmatch(r"env\.\d+\.name", key):
            name = str(entry.value)
            needed = ENV_PRESETS.get(name, {})
            preset |= {key: value for key, value in needed.items() if key in preset}
            preset |= PAIR_PRESETS.get((base, name), {})
    chosen = given.get("trainer.algorithm")
    algorithm = str(chosen.value if chosen else preset.get("trainer.algorithm", "grpo"))
    return [(keys_of(algorithm), f"algorithm {algorithm}"), (preset, f"{base} preset")]


def base_name(model: str) -> str:
    """The model that a run's model was trained from, so that its preset goes on to hold."""
    config = Path(model).expanduser().parent / "config.toml"
    if Path(model).name != "model" or not config.is_file():
        return model
    origin = read_toml(config).get("model")
    return base_name(str(origin)) if origin != model else model
