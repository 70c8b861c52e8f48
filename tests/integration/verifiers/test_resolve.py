"""From a name, a file or an object to a verifier that runs; mistakes are found before a run."""

import sys
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import seams
from agentrl.errors import ConfigError
from agentrl.types import EpisodeView, Score, Task
from agentrl.verifiers import (
    ExactMatch,
    ExactNumber,
    FormatOk,
    Rubric,
    resolve_verifier,
    score_with,
)
from agentrl.workers import WorkerPool

RULES = """
from agentrl.types import Score, Task

CALLS = []


class MyVerifier:
    def score(self, task: Task, answer: str) -> Score:
        CALLS.append(answer)
        return Score(value=float(answer == task.answer), parts={"calls": len(CALLS)})


def exact(task, answer):
    return answer == task.answer


async def exact_async(task, answer):
    return answer == task.answer


INSTANCE = MyVerifier()


class NeedsArguments:
    def __init__(self, path):
        self.path = path

    def score(self, task, answer):
        return 1.0


class NoScore:
    def grade(self, task, answer):
        return 1.0


class OneArgument:
    def score(self, answer):
        return 1.0


class OddRange(MyVerifier):
    score_range = (1.0, 0.0)
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "my_rules_pkg").mkdir()
    (tmp_path / "my_rules_pkg/rules.py").write_text(RULES)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1, "verifiers")
    yield pool
    pool.close()


def message(ref: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_verifier(ref)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_built_in_names_objects_and_classes() -> None:
    assert resolve_verifier("exact_number") == ExactNumber()
    assert resolve_verifier("exact_match") == ExactMatch()
    assert resolve_verifier("format_ok") == FormatOk()
    mine = ExactNumber(0.5)
    assert resolve_verifier(mine) is mine
    assert resolve_verifier(ExactMatch) == ExactMatch()


@pytest.mark.parametrize("place", ["my_rules_pkg.rules", "my_rules_pkg/rules.py"])
@pytest.mark.parametrize("name", ["MyVerifier", "INSTANCE", "exact", "exact_async"])
async def test_references_score(rules: Path, place: str, name: str, pool: WorkerPool) -> None:
    verifier = resolve_verifier(f"{place}:{name}")
    for answer, value in (("Paris", 1.0), ("Rome", 0.0)):
        view = EpisodeView(task=Task(prompt="?", answer="Paris"), messages=(), answer=answer)
        found = await score_with(verifier, view, pool=pool, timeout_s=20)
        assert isinstance(found, Score), found
        assert found.value == value


async def test_file_is_loaded_once_in_a_worker(rules: Path, pool: WorkerPool) -> None:
    verifier = resolve_verifier("my_rules_pkg/rules.py:MyVerifier")
    view = EpisodeView(task=Task(prompt="?", answer="x"), messages=(), answer="x")
    counts = [await score_with(verifier, view, pool=pool, timeout_s=20) for _ in range(3)]
    assert [found.parts["calls"] for found in counts if isinstance(found, Score)] == [1, 2, 3]


def test_installed_entry_point(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(*, group: str) -> EntryPoints:
        entry = EntryPoint("mine", "my_rules_pkg.rules:MyVerifier", group)
        broken = EntryPoint("broken", "my_rules_pkg.rules:Gone", group)
        return EntryPoints([entry, broken] if group == "agentrl.verifiers" else [])

    monkeypatch.setattr(seams, "entry_points", installed)
    assert type(resolve_verifier("mine")).__name__ == "MyVerifier"
    assert "verifier broken = my_rules_pkg.rules:Gone does not exist" in message("broken")
    assert "did you mean mine?" in message("min")


def test_unknown_name() -> None:
    assert message("exact_numbr") == (
        "verifier exact_numbr is unknown (your own is written pkg.mod:Name or path/file.py:Name), "
        "did you mean exact_number?"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MyVerifer", "my_rules_pkg/rules.py has no MyVerifer, did you mean MyVerifier?"),
        ("NeedsArguments", "is a class that needs arguments (missing a required argument: 'path')"),
        ("NoScore", "has no score method; expected score(task, answer), score_episode(view) or"),
        ("OneArgument", ": score takes (answer), expected (task, answer)"),
        ("CALLS", "has no score method; expected"),
        ("OddRange", "declares score_range (1.0, 0.0); expected two finite numbers"),
    ],
)
def test_mistakes_in_a_file(rules: Path, name: str, expected: str) -> None:
    ref = f"my_rules_pkg/rules.py:{name}"
    found = message(ref)
    assert expected in found
    assert found.startswith("verifier ")


def test_file_that_raises(rules: Path) -> None:
    (rules / "broken.py").write_text("\nimport no_such_foo\n")
    assert message("broken.py:X") == (
        "verifier broken.py:X cannot be imported: ModuleNotFoundError: No module named "
        "'no_such_foo' (broken.py, line 2)"
    )


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def score(self, task: Task, answer: Any) -> float:
        return 1.0


class LockedAsync(Locked):
    async def score(self, task: Task, answer: Any) -> float:  # type: ignore[override]
        return 1.0


def test_what_cannot_travel_is_refused_unless_it_needs_not_to() -> None:
    assert "Locked cannot be sent to the process" in message(Locked())
    assert "part fine: " not in message(Rubric(one=(ExactMatch(), 1.0), bad=(Locked(), 1.0)))
    assert "part bad cannot be sent" in message(Rubric(bad=(Locked(), 1.0)))
    assert isinstance(resolve_verifier(LockedAsync()), LockedAsync)


@pytest.mark.parametrize("ref", [3, None, [], {"score": 1}])
def test_objects_that_are_no_verifiers(ref: object) -> None:
    assert "has no score method" in message(ref)
