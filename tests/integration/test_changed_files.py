"""Two jobs in one process, as in a notebook: each goes by what its files hold when it begins."""

import json
from pathlib import Path

import pytest

from agentrl.envs import default_services
from agentrl.envs.code_sandbox import CodeSandbox
from agentrl.envs.swe.repair import repair_of
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.orchestration.env_mix import NO_OBJECTS, BoundEnv, Overrides, bind_envs
from agentrl.orchestration.load import load_run_config
from agentrl.types import AssistantTurn, Score

ENV = """
from agentrl.envs import ToolEnv

class Listed(ToolEnv):
    tasks = "tasks.jsonl"
    verifier = "rules.py:rule"
    max_turns = {turns}
"""
RULE = "def rule(task, answer): return {score}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, prompt: str, score: float, turns: int) -> None:
    (folder / "tasks.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    (folder / "rules.py").write_text(RULE.format(score=score))
    (folder / "env.py").write_text(ENV.format(turns=turns))


def bind(env: str, objects: Overrides = NO_OBJECTS) -> BoundEnv:
    (bound,) = bind_envs(load_run_config(flags=["--env", env], objects=objects).config, objects)
    return bound


async def played(bound: BoundEnv) -> tuple[str, float, int]:
    """The prompt, the score and the limit of turns of an episode."""
    env, task = bound.make(default_services(), None), bound.task(0, "train", 0)
    await env.areset(options={"task": task})
    await env.advance(AssistantTurn(text="done"))
    outcome = await env.ascore()
    await env.aclose()
    assert isinstance(outcome, Score)
    return str(task.prompt), outcome.value, env.max_turns


async def test_the_next_job_goes_by_the_files_and_the_last_one_by_what_it_had(here: Path) -> None:
    write(here, "a", 0.1, 1)
    first = bind("env.py:Listed")
    given = Overrides(given={"Listed": first.env_class})
    assert await played(first) == ("a", 0.1, 1)
    write(here, "b", 0.2, 1)  # the class is the same, what it names is not
    second = bind("env.py:Listed")
    assert second.env_class is first.env_class
    assert await played(second) == ("b", 0.2, 1)
    assert await played(bind("Listed", given)) == ("b", 0.2, 1)
    write(here, "c", 0.3, 2)
    assert await played(bind("env.py:Listed")) == ("c", 0.3, 2)
    assert await played(bind("Listed", given)) == ("c", 0.3, 1)
    assert [await played(bound) for bound in (first, second)] == [("a", 0.1, 1), ("b", 0.2, 1)]


def test_a_file_of_code_tasks_is_read_again(here: Path) -> None:
    tests = [{"args": [1], "expected": 2}]
    lines = [{"prompt": "old", "answer": tests, "id": f"{n}"} for n in range(20)]
    file = here / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    config = CodeSandbox.Config(tasks=str(file))
    source = CodeSandbox.task_source(config)
    assert source.task(0, "train", 0).prompt == "old"
    file.write_text(file.read_text().replace("old", "new"))
    assert source.task(0, "train", 0).prompt == "old"
    again = CodeSandbox.Config(tasks=str(file))
    assert CodeSandbox.task_at(0, split="train", seed=0, config=again).prompt == "new"
    assert again == config


def test_a_file_of_repairs_is_read_again(here: Path) -> None:
    record = {
        "instance_id": "a__b-1",
        "repo": "a/b",
        "base_commit": "0",
        "patch": "",
        "test_patch": "",
        "problem_statement": "old",
        "FAIL_TO_PASS": '["t.py::test"]',
        "PASS_TO_PASS": "[]",
        "image_name": "x",
    }
    file = here / "instances.jsonl"
    for words in ("old", "new"):
        file.write_text(json.dumps(record | {"problem_statement": words}) + "\n")
        tasks = SweSandbox.list_tasks(SweSandbox.Config(tasks=str(file)))
        (task,) = [task for split in tasks.values() for task in split]
        assert task.prompt == words
        assert repair_of(task).issue == words
