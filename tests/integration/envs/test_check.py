import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from numpy.random import Generator

from agentrl.cli.dispatch import main
from agentrl.envs import EchoAgent, NullAgent, ToolEnv, resolve_env
from agentrl.envs.check import check_env_class
from agentrl.envs.services import default_services
from agentrl.tokens import Tokenizer
from agentrl.tools import tool
from agentrl.types import Agent, AssistantTurn, EpisodeView, Task, ToolCall


class Sound(ToolEnv):
    tasks: ClassVar[Any] = {"train": [{"prompt": "p"}], "heldout": [{"prompt": "q"}]}

    def score(self, answer: Any) -> float:
        return float(answer == "yes")


@pytest.mark.parametrize("name", ["calculator", "long_haul", "number_guess"])
def test_the_built_in_environments_are_sound(name: str, tokenizer: Tokenizer) -> None:
    report = check_env_class(resolve_env(name), tokenizer=tokenizer, num_tasks=3)
    assert report.ok, report.lines()
    rows = {row.name: row.detail for row in report.rows}
    assert "mean return 1" in rows["expert"]
    assert "tokens" in rows["prompt"]
    assert "reset" in rows["time"]
    assert "step" in rows["time"]


def test_an_environment_without_expert_or_tokenizer_is_fine() -> None:
    report = check_env_class(Sound, num_tasks=2)
    assert report.ok, report.lines()
    assert "characters" in "\n".join(report.lines())


def test_the_process_of_isolated_tools_is_no_leak() -> None:
    default_services.cache_clear()  # its processes have not started
    try:
        report = check_env_class(Isolated, num_tasks=2)
    finally:
        default_services().close()
        default_services.cache_clear()
    assert report.ok, report.lines()


def test_a_prompt_that_the_models_limits_do_not_hold_is_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tiny model's runs have 512 tokens, though its context is larger."""
    argv = ["env", "check", f"{__file__}:LongSomewhere", "--tasks", "1", "--model", "tiny"]
    assert main(argv) == 1
    said = capsys.readouterr().out
    assert "FAIL prompt" in said
    assert "expected less than 512, so that a turn has room behind it" in said
    assert "LongSomewhere: 1 of 13 checks failed" in said


class Timely(Sound):
    @tool
    async def now(self) -> float:
        """Look at the clock."""
        return time.perf_counter()


class Isolated(Sound):
    """Its tool works in a process that serves all episodes."""

    @tool(isolated=True)
    @staticmethod
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: it.
        """
        return 2 * number

    @classmethod
    def expert(cls) -> "type[Isolated]":
        return cls

    @staticmethod
    def act(view: EpisodeView) -> AssistantTurn:
        if view.messages[-1].role == "tool":
            return AssistantTurn(text="yes")
        return AssistantTurn(calls=(ToolCall(name="double", arguments={"number": 2}),))


class Leaky(Sound):
    def setup(self) -> None:
        leaked.append(open(__file__))  # noqa: PTH123, SIM115


class Unseeded(ToolEnv):
    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        return Task(prompt=str(random.random()))

    def score(self, answer: Any) -> float:
        return float(answer == "yes")


class Moving(Sound):
    def setup(self) -> None:
        os.chdir("/")


class OddKey(Sound):
    def state_key(self) -> Any:
        return 7


class Cancelling(Sound):
    async def reply(self, text: str) -> str | None:
        raise asyncio.CancelledError


class Rich(Sound):
    async def reply(self, text: str) -> str | None:
        self.reward(1e308)
        self.reward(1e308)
        return None


class Lone(ToolEnv):
    tasks = ({"prompt": "a \ud800 b"},)

    def score(self, answer: Any) -> float:
        return float(answer == "yes")


class Crashing(Sound):
    async def reply(self, text: str) -> str | None:
        raise KeyError("lost")


class Puzzled(Sound):
    @classmethod
    def agents(cls) -> Any:
        return {"puzzled": cls}

    @staticmethod
    def act(view: EpisodeView) -> AssistantTurn:
        return AssistantTurn(text=view.task.data["lost"])


class Careless(Sound):
    async def setup(self) -> None:
        self.reward(1.0)


class TrainOnly(Sound):
    tasks = ({"prompt": "p"},)


class Shared(Sound):
    tasks: ClassVar[Any] = {
        "train": [{"prompt": "p"}, {"prompt": "q", "id": "a"}],
        "heldout": [{"prompt": "q", "id": "b"}, {"prompt": "r"}],
    }


class FewMade(ToolEnv):
    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        return Task(prompt=str(rng.integers(3)))

    def score(self, answer: Any) -> float:
        return float(answer == "yes")


class Generous(Sound):
    def score(self, answer: Any) -> float:
        return 1.0


class Flattered(Generous):
    @classmethod
    def expert(cls) -> Agent:
        return NullAgent()


class Echoed(Sound):
    @classmethod
    def expert(cls) -> Agent:
        return EchoAgent()

    def score(self, answer: Any) -> float:
        return float(answer in ("p", "q"))


class LongSomewhere(Sound):
    """The long prompt is not among the tasks that are played."""

    tasks: ClassVar[Any] = {
        "train": [{"prompt": f"p {i}"} for i in range(30)] + [{"prompt": "word " * 600}],
        "heldout": [{"prompt": "q"}],
    }


leaked: list[Any] = []


@pytest.mark.parametrize(
    ("env_class", "row", "detail"),
    [
        (TrainOnly, "splits", "there are no tasks for the split heldout"),
        (Shared, "splits", "2 held-out tasks, 1 of them in train too"),
        (FewMade, "splits", "3 held-out tasks, 3 of them in train too"),
        (Generous, "expert", "every agent gets 1: the reward tells nobody apart"),
        (Flattered, "expert", "mean return 1, 1.0 turns, but the null agent gets 1"),
        (Echoed, "expert", "but the echo agent gets 1"),
        (Timely, "determinism", "went differently; use self.rng"),
        (Unseeded, "tasks", "make_task must draw from its rng only"),
        (Moving, "leaks", "the working directory is now /"),
        (OddKey, "null agent", "state_key returned a int, expected str or None"),
        (Cancelling, "null agent", "reply raised CancelledError"),
        (Rich, "null agent", "expected a finite sum"),
        (Lone, "null agent", "holds half of a surrogate pair (U+D800)"),
        (Leaky, "leaks", "more open files"),
        (Crashing, "null agent", "episode 1 is invalid: reply raised KeyError"),
        (Puzzled, "puzzled agent", "the agent's act raised KeyError: 'lost' (tests/"),
        (Careless, "gymnasium", "reward was called outside of a turn"),
    ],
)
def test_each_fault_has_its_row(
    env_class: type[ToolEnv], row: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())  # taken back at the end
    report = check_env_class(env_class, num_tasks=8)
    for file in leaked:
        file.close()
    leaked.clear()
    assert not report.ok
    found = {r.name: r for r in report.rows}[row]
    assert not found.ok
    assert detail in found.detail


@pytest.mark.parametrize("hook", ["reply", "score"])
def test_an_interrupted_check_closes_its_episode(hook: str) -> None:
    closed: list[str] = []

    class Held(ToolEnv):
        tasks = ({"prompt": "p"},)

        async def setup(self) -> None:
            self.resources.callback(closed.append, "closed")

        async def reply(self, text: str) -> None:
            self._pass("reply")

        async def score(self, answer: object) -> float:
            return self._pass("score")

        def _pass(self, name: str) -> float:
            if name == hook:
                raise KeyboardInterrupt
            return 0.0

    with pytest.raises(KeyboardInterrupt):
        check_env_class(Held, num_tasks=1)
    assert closed == ["closed"]


class Talkative(Sound):
    """What it raises has lines, colours and no end; `splits` and agents meet it."""

    def score(self, answer: Any) -> float:
        raise ValueError("first\r\n\x1b[31msecond\u2028third\n" * 100)


class Silent(Sound):
    def setup(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("name", ["Talkative", "Silent"])
def test_a_row_is_a_line_whatever_was_raised(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", f"{__file__}:{name}", "--tasks", "1"]) == 1
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert all(line.startswith(("ok   ", "FAIL ")) for line in lines[:-1])
    assert all(line.isprintable() and len(line) < 300 for line in lines)
    assert any(f"in {'score' if name == 'Talkative' else 'setup'})" in line for line in lines)
    assert main(["env", "check", f"{__file__}:{name}", "--tasks", "1", "--json"]) == 1
    rows = {row["name"]: row["detail"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["null agent"].count("third") == (100 if name == "Talkative" else 0)
