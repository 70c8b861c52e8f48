"""A run's configuration from a file, flags and keywords, with the model's preset underneath."""

import re
from collections.abc import Mapping, Sequence, Set
from functools import partial
from pathlib import Path

from agentrl.config import Loaded, load_config
from agentrl.config.draft import Value
from agentrl.config.flags import Argument
from agentrl.config.load import read_toml
from agentrl.config.plain import as_mapping
from agentrl.config.schema import schema_of
from agentrl.engine.local.models.resolve import TINY
from agentrl.orchestration.config import SHORT_NAMES, RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.placement.pools import keys_of_pools
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
        preset=partial(_choose_presets, file),
        keywords=keywords,
        parameters={"env": lambda name: objects.env_class(name).Config},
    )


def _choose_presets(
    file: Path | None, given: Mapping[str, Value]
) -> list[tuple[Mapping[str, object], str, Set[str]]]:
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
    if {"trainer.estimator", "trainer.loss"} & given.keys():
        preset.pop("trainer.algorithm", None)  # it goes with an estimator and a loss of its own
    algorithm = str(chosen.value if chosen else preset.get("trainer.algorithm", "grpo"))
    sets = keys_of(algorithm)
    given_up = _find_keys_of_another_algorithm(file, given, algorithm)
    own = {key: sets.get(key, default) for key, default in given_up.items()} | sets
    pools = keys_of_pools({key: entry.value for key, entry in given.items()})
    return [
        (pools, "pools", set()),
        (own, f"algorithm {algorithm}", given_up.keys()),
        (preset, f"{base} preset", set()),
    ]


def _find_keys_of_another_algorithm(
    file: Path | None, given: Mapping[str, Value], algorithm: str
) -> dict[str, object]:
    """What a file says only since a run with another algorithm was written down, and the defaults.

    That is what that algorithm set, and defaults that this one changes: a `config.toml` has them.
    """
    written = (as_mapping(read_toml(file).get("trainer")) if file else None) or {}
    if file is None or written.get("algorithm", algorithm) == algorithm:
        return {}
    before, leaves = keys_of(str(written["algorithm"])), schema_of(RunConfig).leaves
    return {
        key: leaves[key].default
        for key in {**before, **keys_of(algorithm)}
        if key in given
        and given[key].origin == str(file)
        and given[key].value == before.get(key, leaves[key].default)
    }


def base_name(model: str) -> str:
    """The model that a run's model was trained from, so that its preset goes on to hold."""
    config = Path(model).expanduser().parent / "config.toml"
    if Path(model).name != "model" or not config.is_file():
        return model
    origin = read_toml(config).get("model")
    return base_name(str(origin)) if origin != model else model
