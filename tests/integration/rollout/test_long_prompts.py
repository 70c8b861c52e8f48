"""Prompts that leave no room for a turn: told at start, left out once, never retried."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from numpy.random import Generator

import agentrl
from agentrl.cli.dispatch import main
from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError
from agentrl.rollout import Codec, find_long
from agentrl.tokens import Tokenizer
from agentrl.types import Task

LONG = "word " * 600
FEW: dict[str, Any] = {"group_size": 2, "seed": 1, "rollout": {"max_new_tokens": 4}}


class Letters(ToolEnv):
    def score(self, answer: str) -> float:
        return min(1.0, len(answer) / 20)


class Mixed(Letters):
    tasks = (Task(prompt="Short"), Task(prompt=LONG, id="epic"))


class Unlisted(Letters):
    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        number = int(rng.integers(1000))
        return Task(prompt=LONG if number % 2 else f"Short {number}", id=str(number))


class AllLong(Letters):
    tasks = tuple(Task(prompt=LONG, id=f"epic {i}") for i in range(3))


class AllMadeLong(Letters):
    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        return Task(prompt=f"{LONG} {rng.integers(10)}")


@pytest.mark.parametrize(("env", "steps"), [(Mixed, 4), (Unlisted, 6)])
def test_a_long_prompt_is_left_out_once_and_the_run_goes_on(
    env: type[ToolEnv], steps: int, tmp_path: Path
) -> None:
    """With one task a step whole steps are left out, which the breaker would not have allowed."""
    result = agentrl.train(env, steps=steps, tasks_per_step=1, runs_dir=str(tmp_path), **FEW)
    lines = (result.path / "metrics.jsonl").read_bytes().splitlines()
    found = [orjson.loads(line) for line in lines]
    assert len(found) == steps
    assert {line["invalid"] for line in found} == {0}
    left_out = sum(line.get("too_long", 0) for line in found)
    assert 0 < left_out < steps
    assert sum(line["episodes"] for line in found) == 2 * (steps - left_out)
    events = (result.path / "events.jsonl").read_text().splitlines()
    told = [e["tasks"] for e in map(orjson.loads, events) if e["event"] == "prompt_too_long"]
    names = [name for tasks in told for name in tasks]
    assert len(names) == len(set(names)) > 0
    assert "tokens, expected less than 512, so that a turn has room; shorten it" in names[0]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (AllLong, r"all 3 tasks of split train .* task epic \d of env AllLong has 1\d+ tokens, "),
        (AllMadeLong, "the first 4 tasks of split train have too long a prompt"),
    ],
)
def test_a_run_with_nothing_but_long_prompts_does_not_start(
    env: type[ToolEnv], message: str, tmp_path: Path
) -> None:
    rollout = {"max_new_tokens": 4, "max_context_tokens": 400}
    with pytest.raises(ConfigError, match=message):
        agentrl.train(env, steps=1, runs_dir=str(tmp_path), rollout=rollout)
    assert not [*tmp_path.glob("*/metrics.jsonl")]


def test_the_dry_run_names_the_task_its_length_and_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--env", f"{__file__}:Mixed", "--dry-run"]) == 0
    warning = capsys.readouterr().out.splitlines()[-2]
    assert warning.startswith("# warning: 1 of 2 tasks of split train will be left out: the prompt")
    assert "task epic of env" in warning


def test_an_evaluation_counts_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    result = agentrl.evaluate(Mixed, eval={"tasks": 2, "split": "train"}, **FEW)
    assert (result.tasks, result.too_long, result.invalid) == (1, 1, 0)


def test_of_a_long_list_only_the_doubtful_prompts_are_rendered(tiny_folder: Path) -> None:
    codec = Codec(Tokenizer.load(tiny_folder))
    tasks: Sequence[Task] = [Task(prompt="ab " * (i % 50), id=str(i)) for i in range(20_000)]
    began = time.process_time()
    long, sure = find_long(Mixed(), "m", [*tasks, Task(prompt=LONG, id="epic")], codec, 512)
    assert time.process_time() - began < 3
    assert ([prompt.task for prompt in long], sure) == (["epic"], True)
