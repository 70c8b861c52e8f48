import json

import pytest

from agentrl.cli.dispatch import main


def test_env_list_shows_the_built_in_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "list", "--json"]) == 0
    found = {env["name"]: env for env in json.loads(capsys.readouterr().out)}
    assert found["calculator"]["parameters"]["digits"]["default"] == 2
    assert main(["env", "list"]) == 0
    text = capsys.readouterr().out
    assert "number_guess" in text
    assert "  --env.digits 2  " in text


def test_env_check_passes_for_the_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["env", "check", "calculator", "--env.digits", "1", "--tasks", "2"]
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {"expert", "determinism", "leaks"} <= {row["name"] for row in report["rows"]}
    assert report["tools"][0]["function"]["name"] == "calculator"
    assert main(argv) == 0
    assert capsys.readouterr().out.endswith("Calculator: fit for training\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "env check: got no ENV, expected one; for example: agentrl env check calculator"),
        (["calculater"], "did you mean calculator?"),
        (["calculator", "--env.digit", "3"], "did you mean --env.digits?"),
        (["calculator", "--env.digits", "0"], "--env.digits: got 0, expected"),
        (["no/such.py:Env"], "environment no/such.py:Env cannot be imported: there is no file"),
    ],
)
def test_env_check_refuses_bad_input(
    capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert main(["env", "check", *argv]) == 2
    assert said in capsys.readouterr().err


def test_env_check_fails_for_an_environment_that_is_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.envs.calculator import Calculator

    monkeypatch.setattr(Calculator, "expert", staticmethod(_Lazy))
    assert main(["env", "check", "calculator", "--tasks", "2"]) == 1
    assert "1 of " in capsys.readouterr().out


class _Lazy:
    def act(self, view: object) -> object:
        from agentrl.types import AssistantTurn

        return AssistantTurn(text="I do not know.")
