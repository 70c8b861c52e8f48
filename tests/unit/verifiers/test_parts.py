"""ExactMatch, LengthPenalty and FormatOk."""

import pytest

from agentrl.errors import ConfigError
from agentrl.types import CallErrorReason, EpisodeView, Task
from agentrl.verifiers import ExactMatch, FormatOk, LengthPenalty

TASK = Task(prompt="Capital of France?", answer="Paris")


@pytest.mark.parametrize("answer", ["Paris", " Paris", "Paris\n\t "])
def test_match_must_accept(answer: str) -> None:
    assert ExactMatch().score(TASK, answer) is True


@pytest.mark.parametrize(
    "answer",
    [
        "paris",
        "Paris.",
        "It is Paris",
        "Paris Paris",
        "Pa ris",
        "P\u0430ris",
        "",
        None,
        ["Paris"],
        b"Paris",
    ],
)
def test_match_must_reject(answer: object) -> None:
    assert ExactMatch().score(TASK, answer) is False


def test_match_options() -> None:
    assert ExactMatch(casefold=True).score(TASK, "PARIS")
    assert ExactMatch(casefold=True).score(Task(prompt="?", answer="Straße"), "STRASSE")
    assert not ExactMatch(strip=False).score(TASK, "Paris ")


@pytest.mark.parametrize("reference", [None, 42, ["Paris"]])
def test_match_needs_a_text_to_compare_with(reference: object) -> None:
    with pytest.raises(TypeError, match="expected a text"):
        ExactMatch().score(Task(prompt="?", answer=reference), "Paris")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("x", 1.0),
        ("x" * 10, 1.0),
        ("x" * 15, 0.5),
        ("x" * 20, 0.0),
        ("x" * 1000, 0.0),
        ("", 0.0),
        ("   ", 0.0),
        (None, 0.0),
        (12345, 1.0),
    ],
)
def test_length_penalty(answer: object, expected: float) -> None:
    assert LengthPenalty(10).score(TASK, answer) == pytest.approx(expected)


def test_length_limit_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="max_chars is 0"):
        LengthPenalty(0)


def view(*errors: str) -> EpisodeView:
    return EpisodeView(task=TASK, messages=(), call_errors=errors)


def test_format_ok_is_about_calls_that_could_not_run() -> None:
    assert FormatOk().score_episode(view()) is True
    assert FormatOk().score_episode(view("tool_error")) is True
    for reason in CallErrorReason:
        assert FormatOk().score_episode(view("tool_error", reason)) is False


def test_format_ok_does_not_guess() -> None:
    with pytest.raises(ValueError, match="no call_errors"):
        FormatOk().score_episode(EpisodeView(task=TASK, messages=()))
