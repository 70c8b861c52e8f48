"""The layers of a run's configuration: what it was started with, then what each resume changed.

    layers.jsonl   the start ─▶ resumed after step 6 ─▶ resumed after step 9
                   all keys     trainer.lr (--lr)       nothing                config.toml: the sum

`config.toml` is what the next resume begins with; the layers tell since when a value holds, where
it came from and what was there before. Every resume that begins has a layer, one that is refused
has none. What differs between `config.toml` and the sum of the layers was edited by hand, and
becomes a part of the next layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import cast

from agentrl.config import Loaded, dump_config
from agentrl.config.dump import toml_value
from agentrl.config.flags import Argument
from agentrl.config.plain import as_list, as_mapping
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.load import load_run_config
from agentrl.run_dir import RunDirectory
from agentrl.run_dir.writing import LineWriter, read_lines
from agentrl.types import Json

PLACE = ("name", "runs_dir")
"""Where a run is: no part of what a resume changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What holds from the step after `step`."""

    step: int
    values: Mapping[str, Json]
    """By dotted key."""
    origins: Mapping[str, str]
    before: Mapping[str, Json] = field(default_factory=dict[str, Json])
    accepted: Sequence[str] = ()
    """What else had changed since the run was stopped, in words, and was accepted."""
    data: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fingerprints of that."""

    def changes(self) -> list[str]:
        """What the layer changed, such as `trainer.lr: 0.5 -> 0.25 (--lr)`."""
        return [
            f"{key}: {toml_value(self.before.get(key))} -> {toml_value(value)}"
            f" ({self.origins[key]})"
            for key, value in self.values.items()
        ] + [f"{what}: accepted as it is now (--accept-changes)" for what in self.accepted]


@dataclass(frozen=True, slots=True)
class Layers:
    """All layers of a run, oldest first; the first one has every key."""

    layers: tuple[Layer, ...] = ()

    @classmethod
    def read(cls, directory: RunDirectory) -> "Layers":
        """Those of a run; none where it was killed before it had any."""
        empty: dict[str, object] = {"values": {}, "origins": {}}
        lines = [empty | line for line in read_lines(directory.layers)]
        return cls(tuple(Layer(**line) for line in lines))  # type: ignore[arg-type]  # as written

    @classmethod
    def started(cls, directory: RunDirectory, objects: Overrides) -> "Layers":
        """Those of a run, or what it has in `config.toml` where it was killed before it had any."""
        found = cls.read(directory)
        if not found.layers:
            write_layer(
                directory, first := load_resumed(directory, objects=objects), first_layer(first)
            )
        return cls.read(directory)

    @property
    def values(self) -> dict[str, Json]:
        """The sum: every key with the value of the last layer that has it."""
        return {key: value for layer in self.layers for key, value in layer.values.items()}

    @property
    def origins(self) -> dict[str, str]:
        """Where each value of the sum came from, and since when."""
        first, rest = self.layers[:1], self.layers[1:]
        found = {key: origin for layer in first for key, origin in layer.origins.items()}
        for layer in rest:
            since = f"after step {layer.step}"
            found |= {key: f"{origin} {since}" for key, origin in layer.origins.items()}
        return found

    def until(self, step: int) -> "Layers":
        """The layers that `step` was trained under: a resume from an earlier step redid it."""
        held = [
            layer
            for i, layer in enumerate(self.layers)
            if i == 0 or min(later.step for later in self.layers[i:]) < step
        ]
        return Layers(tuple(held))

    def kept(self) -> list[str]:
        """What resumes before the last one changed and still holds."""
        origins, start, last = self.origins, self.layers[0].values, self.layers[-1].values
        return [
            f"{key}: {toml_value(value)} ({origins[key]})"
            for key, value in self.values.items()
            if value != start.get(key) and key not in last
        ]

    def next(self, loaded: Loaded[RunConfig], step: int) -> Layer:
        """The layer of a resume with this configuration."""
        known, now = self.values, flat_values(loaded)
        changed = {
            key: value
            for key, value in now.items()
            if key not in PLACE
            and known.get(key) != value
            and (key in known or loaded.origins[key] != "default")
        }
        return Layer(
            step=step,
            values=changed,
            origins={key: loaded.origins[key] for key in changed},
            before={key: known[key] for key in changed if key in known},
        )


def load_resumed(
    directory: RunDirectory,
    *,
    flags: Sequence[Argument] = (),
    keywords: Mapping[str, object] | None = None,
    objects: Overrides = NO_OBJECTS,
) -> Loaded[RunConfig]:
    """The configuration of a run with flags and keywords on top; what stays keeps its origin.

    Raises:
        ConfigError: the run has no configuration, or one line for each thing that is wrong.
    """
    if not directory.config.exists():
        raise ConfigError(
            f"{directory.path}: has no config.toml, so there is nothing to resume; start it again "
            f"with --name {directory.name}"
        )
    place = [f"--runs-dir={directory.path.parent}", f"--name={directory.name}"]
    loaded = load_run_config(
        file=directory.config, flags=[*flags, *place], keywords=keywords, objects=objects
    )
    layers, now = Layers.read(directory), flat_values(loaded)
    values, origins = layers.values, layers.origins
    file = str(directory.config)
    found = {
        key: origins[key]
        if key in origins and (now[key] == values[key] or key in PLACE)
        else origin.replace(file, "config.toml")
        for key, origin in loaded.origins.items()
    }
    return replace(loaded, origins=found)


def first_layer(loaded: Loaded[RunConfig]) -> Layer:
    """The layer of a start: every key."""
    return Layer(step=0, values=flat_values(loaded), origins=loaded.origins)


def write_layer(directory: RunDirectory, loaded: Loaded[RunConfig], layer: Layer) -> None:
    """Bring `config.toml` up to date, then add the layer.

    Killed in between, the next resume finds the values in `config.toml` and has the layer.
    """
    layers = Layers((*Layers.read(directory).layers, layer))
    data = loaded.config.model_dump(mode="json")
    config = RunConfig.model_validate(
        data | {key: layers.values[key] for key in PLACE if key in layers.values}
    )
    directory.write_config(dump_config(Loaded(config, {**loaded.origins, **layers.origins})))
    with LineWriter(directory.layers, fsync=True) as writer:
        writer.append(
            {key: value for key, value in asdict(layer).items() if value or key == "step"}
        )


def config_at(loaded: Loaded[RunConfig], layers: Layers, step: int) -> RunConfig:
    """The configuration that a step was trained under; `loaded` is that of now."""
    data = cast("dict[str, object]", loaded.config.model_dump(mode="json"))
    now = flat_values(loaded)
    for key, value in layers.until(step).values.items():
        if key not in PLACE and now.get(key, value) != value:
            _set_config_value_at_key(data, key, value)
    return RunConfig.model_validate(data)


def flat_values(loaded: Loaded[RunConfig]) -> dict[str, Json]:
    """Every value of a configuration by its dotted key."""
    data: object = loaded.config.model_dump(mode="json")
    found: dict[str, Json] = {}
    for key in loaded.origins:
        value = data
        for name in key.split("."):
            rows, table = as_list(value), as_mapping(value)
            value = rows[int(name)] if rows is not None else (table or {}).get(name)
        found[key] = cast(Json, value)
    return found


def _set_config_value_at_key(data: dict[str, object], key: str, value: Json) -> None:
    *sections, name = key.split(".")
    for section in sections:
        data = cast("dict[str, object]", data[section])
    data[name] = value
