from collections.abc import Sequence

import pytest
from pydantic import ConfigDict, Field

from agentrl.cli.command import Arguments, JsonOption, Verb, invoke, parse, render
from agentrl.config import Config
from agentrl.errors import ConfigError


class Options(JsonOption):
    dry_run: bool = Field(default=False, description="Only check.")
    resume: str | None = Field(default=None, description="Go on with a run")


class Entry(Config):
    model_config = ConfigDict(extra="allow")
    name: str
    weight: float = Field(default=1.0, gt=0, description="share of the tasks")


class Trainer(Config):
    lr: float = Field(default=1e-3, gt=0, description="Learning rate.")
    fast: bool = False


class Tree(Config):
    model: str = Field(description="The model.")
    steps: int = Field(default=100, ge=1, description="Optimizer steps.")
    env: tuple[Entry, ...] = ()
    trainer: Trainer = Trainer()


def _run(options: Options, arguments: Arguments) -> int:
    flags = [f"{flag.name}={flag.text}" for flag in arguments.flags]
    print(options.dry_run, options.resume, options.as_json, *arguments.positional, *flags)
    return 3


COMMAND = Verb(
    summary="Train.",
    examples=["agentrl train run.toml"],
    options=Options,
    run=_run,
    takes=["[run.toml]"],
    config=Tree,
    short={"lr": "trainer.lr", "steps": "steps", "env": "env"},
)
PLAIN = Verb(
    summary="Check.",
    examples=["agentrl check x"],
    options=JsonOption,
    run=lambda options, arguments: 0,
    takes=["ENV"],
)


def test_a_command_gets_its_options_and_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--dry-run", "run.toml", "--lr", "3", "--trainer.fast", "--resume", "x", "--json"]
    assert invoke("train", COMMAND, argv) == 3
    assert capsys.readouterr().out == "True x True run.toml --lr=3 --trainer.fast=None\n"


@pytest.mark.parametrize(
    ("argv", "positional", "flags"),
    [
        (["--trainer.fast", "run.toml"], ("run.toml",), [("--trainer.fast", None)]),
        (["--trainer.fast", "false", "run.toml"], ("run.toml",), [("--trainer.fast", "false")]),
        (["--lr", "-1"], (), [("--lr", "-1")]),
        (["--", "--odd.toml"], ("--odd.toml",), []),
        (["--zzz", "1"], (), [("--zzz", "1")]),
    ],
)
def test_arguments_are_split(
    argv: Sequence[str], positional: tuple[str, ...], flags: list[tuple[str, str | None]]
) -> None:
    _, arguments = parse("train", COMMAND, argv)
    assert arguments.positional == positional
    assert [(flag.name, flag.text) for flag in arguments.flags] == flags


@pytest.mark.parametrize(
    ("command", "argv", "message"),
    [
        (COMMAND, ["a", "b"], 'train: got the argument "b", expected [run.toml]'),
        (COMMAND, ["--resume"], "--resume: got no value, expected TEXT|none"),
        (PLAIN, [], "check: got no ENV, expected one; for example: agentrl check x"),
        (PLAIN, ["x", "--jsn"], "--jsn: unknown flag, did you mean --json?"),
        (PLAIN, ["x", "--json=1"], "--json: got 1, expected true or false"),
    ],
)
def test_a_wrong_argument_gets_one_sentence(
    command: Verb[JsonOption], argv: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("train" if command is COMMAND else "check", command, argv)
    assert str(caught.value) == message


def test_help_shows_every_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert invoke("train", COMMAND, ["run.toml", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: agentrl train [run.toml] [--KEY VALUE ...]"
    assert "  agentrl train run.toml" in lines
    for line in (
        "  --json                      Print JSON.",
        "  --resume TEXT|none          Go on with a run.",
        "  --lr NUMBER                 Short for --trainer.lr. Learning rate."
        " (above 0; default 0.001)",
        "  --steps INT                 Optimizer steps. (at least 1; default 100)",
        "  --env NAME                  One [[env]] table; its keys are --env.KEY.",
        "  --model TEXT                The model. (required)",
        "  --trainer.fast",
        "  --env.weight NUMBER         share of the tasks. (above 0; default 1.0)",
        "  --env.KEY VALUE             A parameter of the env itself.",
    ):
        assert line in lines
    order = [line.split()[0] for line in lines if line.startswith("  --")]
    assert order.index("--lr") < order.index("--model") < order.index("--trainer.lr")
    assert order.count("--steps") == 1


def test_help_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert max(len(line) for line in render("train", COMMAND).splitlines()) <= 72


def test_a_name_with_dots_takes_any_number(capsys: pytest.CaptureFixture[str]) -> None:
    command = Verb(summary="", examples=["x"], options=Options, run=_run, takes=["[THING...]"])
    for arguments in ([], ["a"], ["a", "b", "c"]):
        assert invoke("build", command, arguments) == 3
        assert capsys.readouterr().out.split()[3:] == arguments
