"""`agentrl env check`: is an environment fit for training?"""

import json
from collections.abc import Mapping
from dataclasses import asdict

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.config import Config, load_config
from agentrl.config.load import parse_params
from agentrl.envs import ToolEnv, resolve_env
from agentrl.envs.check import check_env_class
from agentrl.orchestration.config import SHORT_NAMES, EnvEntry
from agentrl.tokens import Tokenizer
from agentrl.verifiers import resolve_verifier


class EnvCheckOptions(JsonOption):
    """How to check."""

    tasks: int = Field(default=8, ge=1, description="Tasks that each scripted agent plays.")
    split: str = Field(default="train", description="Where the tasks come from.")
    verifier: str | None = Field(
        default=None, description="Verifier instead of the environment's own: a name or reference."
    )
    model: str | None = Field(
        default=None,
        description="Measure the prompt by this model's tokens and limits: a name or folder.",
    )


class EnvFlags(Config):
    """The environment's own parameters, as for `train`."""

    env: tuple[EnvEntry, ...] = Field(default=(), description="The environment.")


SHORT: Mapping[str, str] = {"sandbox": SHORT_NAMES["sandbox"]}


def load_env(arguments: Arguments) -> tuple[type[ToolEnv], Config]:
    """The environment that a command line names first, and its parameters.

    Raises:
        ConfigError: There is none, or a parameter is wrong.
    """
    loaded = load_config(
        EnvFlags,
        flags=[f"--env={arguments.positional[0]}", *arguments.flags],
        short=SHORT,
        parameters={"env": lambda name: resolve_env(name).Config},
    )
    (entry,) = loaded.config.env
    env_class = resolve_env(entry.name)
    return env_class, parse_params(env_class.Config, entry.params, "env")


def _run_env_check(options: EnvCheckOptions, arguments: Arguments) -> int:
    env_class, config = load_env(arguments)
    tokenizer, limit = (
        _load_tokenizer_and_limit(options.model, arguments) if options.model else (None, None)
    )
    report = check_env_class(
        env_class,
        config=config,
        verifier=None if options.verifier is None else resolve_verifier(options.verifier),
        tokenizer=tokenizer,
        limit=limit,
        split=options.split,
        num_tasks=options.tasks,
    )
    tools = [schema.to_json() for schema in report.schemas]
    rows = [asdict(row) for row in report.rows]
    failed = sum(not row.ok for row in report.rows)
    verdict = f"{failed} of {len(rows)} checks failed" if failed else "fit for training"
    lines = [*report.lines(), *(json.dumps(tool, ensure_ascii=False) for tool in tools)]
    options.show(
        {"env": report.env, "ok": report.ok, "rows": rows, "tools": tools},
        "\n".join([*lines, f"{report.env}: {verdict}"]),
    )
    return 0 if report.ok else 1


def _load_tokenizer_and_limit(model: str, arguments: Arguments) -> tuple[Tokenizer, int]:
    """The model's tokenizer, and the tokens of a prompt that would fill what a run gives it."""
    from agentrl.engine.local.models.resolve import resolve_tokenizer
    from agentrl.orchestration.load import load_run_config
    from agentrl.orchestration.model_files import context_length, make_limits

    named = (f"--model={model}", f"--env={arguments.positional[0]}")
    config = load_run_config(flags=[*named, *arguments.flags]).config
    folder = resolve_tokenizer(config.model)
    return Tokenizer.load(folder), make_limits(config, context_length(config, folder)).prompt_tokens


COMMAND = Verb(
    summary="Let scripted agents play an environment and report what is wrong with it.",
    examples=[
        "agentrl env check calculator",
        "agentrl env check calculator --env.digits 3 --json",
        "agentrl env check examples/my_first_env/env.py:MyEnv --tasks 20",
    ],
    options=EnvCheckOptions,
    run=_run_env_check,
    takes=["ENV"],
    config=EnvFlags,
    short=SHORT,
)
