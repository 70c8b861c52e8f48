import json
from pathlib import Path

import numpy as np
import pytest

from agentrl.envs.code_sandbox import CodeSandbox
from agentrl.envs.code_tasks import FAMILIES, NUM_TESTS, make
from agentrl.envs.grading import same, share_passed
from agentrl.errors import ConfigError
from agentrl.sandboxes import ExecResult, SandboxOptions, make_sandbox
from agentrl.sandboxes.fake import FakeSandbox
from agentrl.sandboxes.types import Command


@pytest.mark.parametrize("program", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.words[:30])
def test_a_made_task_tells_no_test_and_its_tests_differ(family: object, program: bool) -> None:
    assert family in FAMILIES
    chosen = FAMILIES[FAMILIES.index(family)]
    task = make(np.random.default_rng(0), chosen, chosen.numbers[0], program=program)
    assert len(task.answer) == NUM_TESTS
    outputs = {json.dumps(t["stdout"] if program else t["expected"]) for t in task.answer}
    assert len(outputs) > 2  # a constant does not pass
    inputs = {json.dumps(t["stdin"] if program else t["args"]) for t in task.answer}
    assert len(inputs) > 4


def test_splits_share_no_kind_of_task() -> None:
    kinds = {
        split: {
            str(CodeSandbox.task_at(i, split=split, seed=0).prompt).partition("Example")[0]
            for i in range(150)
        }
        for split in ("train", "heldout")
    }
    assert not kinds["train"] & kinds["heldout"]
    assert len(kinds["train"]) > 40


def test_tasks_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    tests = [{"args": [1], "expected": 2}]
    lines = [json.dumps({"prompt": f"task {n}", "answer": tests, "id": f"t{n}"}) for n in range(9)]
    file.write_text("\n".join(lines))
    config = CodeSandbox.Config(tasks=str(file))
    found = {
        split: {CodeSandbox.task_at(i, split=split, seed=0, config=config).id for i in range(60)}
        for split in ("train", "heldout")
    }
    assert found["train"] | found["heldout"] == {f"t{n}" for n in range(9)}
    assert not found["train"] & found["heldout"]
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "x", "answer": [{"args": [1]}]}\n')
    with pytest.raises(ConfigError, match=r"has no tests as its answer, expected a list of"):
        CodeSandbox.task_at(0, split="train", seed=0, config=CodeSandbox.Config(tasks=str(other)))


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        (1, 1, True), (1, True, False), (1, 1.0, False), (0.1 + 0.2, 0.3, True), ("1", 1, False),
        ([1, [2]], [1, [2]], True), ([1], [1, 2], False), ([1, 2], [1], False),
        ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"a": True}, False), ({}, {"a": 1}, False),
        (None, None, True), (None, 0, False), (float("inf"), 1.0, False),
    ],
)  # fmt: skip
def test_values_are_compared_by_type(found: object, expected: object, equal: bool) -> None:
    assert same(found, expected) is equal


@pytest.mark.parametrize(
    ("stdout", "share"),
    [
        (b'[["2"],["4"]]', 1.0),
        (b'[["2"],["5"]]', 0.5),
        (b'[["2"],[]]', 0.5),
        (b'[["2"]]', 0.0),
        (b'[["2"],["4"],["6"]]', 0.0),
        (b'[[2],["NaN"]]', 0.0),
        (b'[["2", "4"],["4"]]', 0.5),
        (b"[" * 100_000, 0.0),
        (b"", 0.0),
        (b"\xff", 0.0),
        (b'{"0": ["2"]}', 0.0),
        (b'[["' + b"[" * 100_000 + b'"],["4"]]', 0.5),
        (b'[["' + b"9" * 10_000 + b'"],["4"]]', 0.5),
    ],
)
async def test_only_the_expected_values_pass(
    stdout: bytes, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(sandbox: FakeSandbox, command: Command) -> ExecResult:
        assert b"expected" not in command.stdin
        return ExecResult(status="exited", exit_code=0, stdout=stdout)

    monkeypatch.setattr(FakeSandbox, "answer", answer)
    tests = [{"args": [1], "expected": 2}, {"args": [2], "expected": 4}]
    async with make_sandbox(SandboxOptions(backend="fake")) as sandbox:
        await sandbox.write_file("of the agent", b"x")
        assert await share_passed(sandbox, b"", tests, 1, 1) == share
        assert [entry.name for entry in await sandbox.list_dir()] == ["solution.py"]
