"""What the commands that take a run's configuration have in common."""

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from agentrl.boundary import short_path
from agentrl.cli.command import Arguments, JsonOption
from agentrl.cli.display import make_display
from agentrl.config import Loaded
from agentrl.errors import ConfigError
from agentrl.orchestration import layers
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.run import RunResult
from agentrl.run_dir import RunDirectory

FILE = "[run.toml]"


def load(arguments: Arguments, keywords: Mapping[str, object] | None = None) -> Loaded[RunConfig]:
    """The configuration of a command line: its file and its flags, and keys that were chosen."""
    file = Path(arguments.positional[0]) if arguments.positional else None
    return load_run_config(file=file, flags=arguments.flags, keywords=keywords)


def load_resumed(arguments: Arguments, run: str) -> Loaded[RunConfig]:
    """The configuration that a run was started with, with the flags on top.

    Args:
        arguments: the command line; it may hold flags, but no file.
        run: a name, a path or `last`.

    Raises:
        ConfigError: there is no such run, or a file was given too.
    """
    if arguments.positional:
        raise ConfigError(
            f"--resume: got {arguments.positional[0]} too, expected no file:"
            " the run's own configuration is used"
        )
    if any(flag.key == "name" for flag in arguments.flags):
        raise ConfigError("--name: got one beside --resume, expected none: a run keeps its name")
    given = [flag.text for flag in arguments.flags if flag.key == "runs_dir" and flag.text]
    root = given[0] if given else RunConfig.model_fields["runs_dir"].default
    kept = [flag for flag in arguments.flags if flag.key != "runs_dir"]
    return layers.load_resumed(RunDirectory.open(Path(root), run), flags=kept)


def shown(config: RunConfig, total: int, options: JsonOption) -> closing[Observer]:
    """The display of a run of `total` steps; standard output stays free for JSON."""
    title = config.name or ", ".join(env.label for env in config.env)
    return closing(make_display(title, total, sys.stderr if options.as_json else sys.stdout))


def show_result(result: RunResult, options: JsonOption) -> None:
    """Print where a run and its model are, with the last numbers for programs."""
    data = {
        "path": result.path,
        "model": result.model,
        "steps": result.steps,
        "metrics": dict(result.metrics),
        "eval": result.eval.to_json() if result.eval else None,
    }
    run, model = short_path(str(result.path)), short_path(str(result.model))
    options.show(data, f"run    {run}\nmodel  {model}")
