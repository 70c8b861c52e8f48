import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import agentrl.cli.dispatch as cli
from agentrl.cli.command import JsonOption, Verb
from agentrl.errors import ConfigError, EngineError, RunError


def _as_doctor(monkeypatch: pytest.MonkeyPatch, run: Callable[[], int]) -> None:
    module = types.ModuleType("agentrl.cli.doctor")
    module.COMMAND = Verb(  # type: ignore[attr-defined]  # a module made for the test
        summary="",
        examples=["x"],
        options=JsonOption,
        run=lambda options, arguments: run(),
    )
    monkeypatch.setitem(sys.modules, "agentrl.cli.doctor", module)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("a: 1\nb: 2"), 2, "agentrl: error: a: 1\nagentrl: error: b: 2\n"),
        (RunError("broke"), 1, "agentrl: error: broke\n"),
        (EngineError("gone"), 1, "agentrl: error: gone\n"),
        (KeyboardInterrupt(), 130, "\nagentrl: interrupted\n"),
        (KeyboardInterrupt("state is saved"), 130, "\nagentrl: state is saved\n"),
    ],
)
def test_errors_become_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def run() -> int:
        raise error

    _as_doctor(monkeypatch, run)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr().err == said


def test_an_output_that_takes_no_more_is_said_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agentrl", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "agentrl: error: [Errno 28] No space left on device\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        raise ZeroDivisionError

    _as_doctor(monkeypatch, run)
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "trian: unknown command, did you mean train?"),
        (["env"], "env: which one? There is env list, env check, env play"),
        (["env", "lst"], "env lst: unknown command, did you mean list?"),
        (["doctor", "x"], 'doctor: got the argument "x", expected none'),
        (["doctor", "--jsn"], "--jsn: unknown flag, did you mean --json?"),
    ],
)
def test_an_unknown_command_is_bad_input(
    capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err == f"agentrl: error: {said}\n"


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in cli.COMMANDS)


def test_help_of_a_noun_lists_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "--help"]) == 0
    out = capsys.readouterr().out
    assert "  env list " in out
    assert "  train " not in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("agentrl 0.")


def test_help_is_light() -> None:
    code = (
        "import sys, agentrl.cli\n"
        "agentrl.cli.main(['--help'])\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'pyarrow', 'rich'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
