from contextlib import redirect_stdout
from io import StringIO

import pytest

from agentrl.cli.dispatch import COMMANDS, main


def help_of(arguments: list[str]) -> str:
    out = StringIO()
    with redirect_stdout(out):
        assert main([*arguments, "--help"]) == 0
    return out.getvalue()


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.usefixtures("plain_terminal")
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_each_command_says_how_it_is_used(command: str) -> None:
    shown = help_of(command.split())
    assert f"agentrl {command}".strip() in shown
