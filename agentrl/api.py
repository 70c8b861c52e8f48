"""The first of the three levels of the Python API: one call per job.

    result = agentrl.train("calculator", steps=50)
    print(agentrl.evaluate("calculator", model=str(result.model)).pass_at[1])

`agentrl.Run` is the second level, a run to iterate over; the public parts are the third.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from agentrl.config import Loaded
from agentrl.config.anchor import anchored_reference
from agentrl.config.plain import as_list
from agentrl.config.seams import reference_of
from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError
from agentrl.orchestration import jobs
from agentrl.orchestration.config import SEAMS, SHORT_NAMES, RunConfig
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.evaluate import EvalResult
from agentrl.orchestration.layers import load_resumed
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import PlannedRun, RunResult
from agentrl.run_dir import RunDirectory
from agentrl.types import Episode

EnvLike = str | type[ToolEnv]
"""A short name, a reference, or a class."""


def train(
    env: EnvLike, *, resume: bool = False, accept_changes: bool = False, **keys: object
) -> RunResult:
    """Train a model on an environment.

    Args:
        env: the environment.
        resume: go on with the run called `name`, with its own configuration and `keys` on top.
        accept_changes: resume although the tasks are not those that the run was trained on.
        keys: any key of the configuration by its short name (`steps=50`, `lr=1e-3`), or a section
            as a mapping (`trainer={"clip": {"high": 0.28}}`). `verifier`, `estimator`,
            `loss`, `engine`, `sampler`, `tool_format`, the items of `observers` and, in `trainer`,
            `normalise` and `correct` may be objects too.

    Raises:
        ConfigError: something given is wrong; nothing has been loaded yet.
        RunError: the run cannot go on.
    """
    loaded, objects = _load_given_config(env, keys, resume=resume)
    return jobs.train(loaded, objects=objects, resume=resume, accept_changes=accept_changes)


def evaluate(env: EnvLike, **keys: object) -> EvalResult:
    """Play held-out tasks; arguments as for `train`."""
    loaded, objects = _load_given_config(env, keys)
    return jobs.evaluate(loaded.config, objects=objects)[0]


def play(env: EnvLike, **keys: object) -> Sequence[Episode]:
    """Play tasks and return the episodes; arguments as for `train`."""
    loaded, objects = _load_given_config(env, keys)
    return jobs.evaluate(loaded.config, objects=objects)[1].episodes


class Run(PlannedRun):
    """A training run to iterate over; arguments as for `train`, used in a `with` block."""

    def __init__(
        self, env: EnvLike, *, resume: bool = False, accept_changes: bool = False, **keys: object
    ) -> None:
        loaded, objects = _load_given_config(env, keys, resume=resume)
        super().__init__(loaded, objects=objects, resume=resume, accept_changes=accept_changes)


def _load_given_config(
    env: EnvLike, keys: dict[str, object], *, resume: bool = False
) -> tuple[Loaded[RunConfig], Overrides]:
    """Split what was given into values for the configuration and objects beside it."""
    if not isinstance(cast("object", env), str | type):
        raise ConfigError(f"env: got {env!r:.60}, expected a name, path/file.py:Name or a class")
    name = env if isinstance(env, str) else env.__name__
    given: dict[str, object] = {} if isinstance(env, str) else {name: env}
    short = {name.replace("-", "_"): key for name, key in SHORT_NAMES.items()}
    short["async_"] = "async"  # a word of Python itself
    values = {short.get(name, name): value for name, value in keys.items()}
    for key in SEAMS & values.keys():
        parts = as_list(values[key])
        texts = None if parts is None else [_keep_object_by_name(part, given) for part in parts]
        values[key] = _keep_object_by_name(values[key], given) if texts is None else texts
    for section, _, part in (key.partition(".") for key in SEAMS):
        inside = cast("Mapping[str, object] | None", values.get(section))
        if isinstance(inside, Mapping) and part in inside:
            values[section] = {**inside, part: _keep_object_by_name(inside[part], given)}
    objects = Overrides(given=given)
    if resume:
        return _load_resumed_config(name, values, objects), objects
    return load_run_config(keywords={"env": [{"name": name}]} | values, objects=objects), objects


def _load_resumed_config(
    env: str, values: dict[str, object], objects: Overrides
) -> Loaded[RunConfig]:
    run = values.pop("name", None)
    if run is None:
        raise ConfigError("resuming needs the run's name: got none, pass name=...")
    root = values.pop("runs_dir", RunConfig.model_fields["runs_dir"].default)
    directory = RunDirectory.open(Path(str(root)), str(run))
    loaded = load_resumed(directory, keywords=values, objects=objects)
    before = [entry.name for entry in loaded.config.env]
    if before != [anchored_reference(env, Path.cwd())]:
        raise ConfigError(
            f"env: got {env}, but the run was started with {', '.join(before)}; a resumed run has "
            "to keep it, so start a new run instead"
        )
    return loaded


def _keep_object_by_name(value: object, given: dict[str, object]) -> object:
    """What the configuration has for a value; an object is kept beside it."""
    if value is None or isinstance(value, str | Mapping):
        return cast("object", value)
    text = reference_of(value)
    number = 2
    while given.get(text, value) is not value:
        text, number = f"{text.partition(' ')[0].rstrip('>')} {number}>", number + 1
    given[text] = value
    return text
