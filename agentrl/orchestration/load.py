"""A run's configuration from a file, flags and keywords, with the model's preset underneath."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.config.load import Loaded, load_config, read_toml
from agentrl.errors import ConfigError
from agentrl.orchestration.bind import NO_OBJECTS, Objects
from agentrl.orchestration.config import SHORT_NAMES, RunConfig
from agentrl.orchestration.plan import ENV_PRESETS, MODEL_PRESETS, PAIR_PRESETS


def load_run_config(
    *,
    file: Path | None = None,
    flags: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
    objects: Objects = NO_OBJECTS,
) -> Loaded[RunConfig]:
    """Load and check a run's configuration; later layers win: preset, defaults, file, flags.

    Args:
        file: a TOML file.
        flags: command-line flags.
        defaults: dotted keys with values, from a caller in Python.
        objects: environments given as classes, by the names that the configuration uses.

    Raises:
        ConfigError: one line for each thing that is wrong.
    """

    def load(values: Mapping[str, object]) -> Loaded[RunConfig]:
        return load_config(
            RunConfig,
            file=file,
            flags=flags,
            short=SHORT_NAMES,
            defaults=values,
            defaults_origin="keyword",
            parameters={"env": lambda name: objects.env_class(name).Config},
        )

    given = dict(defaults or {})
    first = load(given)
    preset = dict(MODEL_PRESETS.get(base_name(first.config.model), {}))
    for entry in first.config.env:
        needed = ENV_PRESETS.get(entry.name, {})
        preset |= {key: value for key, value in needed.items() if key in preset}
        preset |= PAIR_PRESETS.get((base_name(first.config.model), entry.name), {})
    missing = {key: value for key, value in preset.items() if first.origins[key] == "default"}
    loaded = load(missing | given)
    origins = {
        key: f"{base_name(first.config.model)} preset" if key in missing else origin
        for key, origin in loaded.origins.items()
    }
    return Loaded(loaded.config, origins)


def base_name(model: str) -> str:
    """The model that a run's model was trained from, so that its preset goes on to hold."""
    config = Path(model).expanduser().parent / "config.toml"
    if Path(model).name != "model" or not config.is_file():
        return model
    origin = read_toml(config).get("model")
    return base_name(str(origin)) if origin != model else model


FIXED = ("env", "model", "seed", "rollout.tasks_per_step", "rollout.group_size", "deterministic")
"""What decides which tasks a step trains on: a resumed run keeps it."""


def check_resumable(file: Path, config: RunConfig, objects: Objects) -> None:
    """Compare with the configuration that a run was started with.

    Raises:
        ConfigError: a key differs that a resumed run has to keep.
    """
    started = load_run_config(file=file, objects=objects).config
    for key in FIXED:
        before, now = _value(started, key), _value(config, key)
        if before != now:
            raise ConfigError(
                f"{key}: got {now}, but the run was started with {before}; a resumed run has to "
                "keep it, so start a new run instead"
            )


def _value(config: RunConfig, key: str) -> object:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
