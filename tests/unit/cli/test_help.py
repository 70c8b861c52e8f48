from contextlib import redirect_stdout
from io import StringIO

import pytest

from agentrl.cli.dispatch import COMMANDS, main
from tests.golden import check_golden


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
def test_help_is_that_of_the_golden() -> None:
    helps = {command: help_of(command.split()) for command in COMMANDS}
    check_golden("help", {"": help_of([]), **helps})
