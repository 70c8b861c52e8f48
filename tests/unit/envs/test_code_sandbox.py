import json
import re
from pathlib import Path

import numpy as np
import pytest

from agentrl.envs import code_tasks
from agentrl.envs.code_sandbox import CodeSandbox
from agentrl.envs.code_tasks import (
    FAMILIES,
    NUM_TESTS,
    Family,
    Program,
    compiled,
    make,
    solution_of,
    wrong_programs,
)
from agentrl.envs.grading import check_tests, share_passed
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
    assert NUM_TESTS <= len(task.answer) <= 2 * NUM_TESTS
    outputs = {json.dumps(t["json"] if program else t["expected"]) for t in task.answer}
    assert len(outputs) > 2  # a constant does not pass
    inputs = {json.dumps(t["stdin"] if program else t["args"]) for t in task.answer}
    assert len(inputs) > 4


def no_arguments(*_: object) -> list[object]:
    return []


def test_splits_share_no_kind_of_task(monkeypatch: pytest.MonkeyPatch) -> None:
    # To choose the tests of a task takes long, and no kind depends on them.
    monkeypatch.setattr(code_tasks, "choose_arguments", no_arguments)
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


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.words[:30])
def test_the_tests_of_a_made_task_reject_wrong_programs(family: Family) -> None:
    k = family.numbers[len(family.numbers) // 2]
    right, rng = compiled(solution_of(family, k)), np.random.default_rng(1)
    arguments = [family.argument(rng, k) for _ in range(1000)]
    wrong = [
        program
        for program in wrong_programs(family, k)
        if any(result_of(program, a) != json.dumps(right(a)) for a in arguments)
    ]
    assert len(wrong) >= 20
    for seed in range(3):
        tests = make(np.random.default_rng(seed), family, k, program=False).answer
        for program in wrong:
            results = [result_of(program, *test["args"]) for test in tests]
            assert results != [json.dumps(test["expected"]) for test in tests]


def result_of(program: Program, argument: object) -> str:
    try:
        return json.dumps(program(argument))
    except Exception as error:  # whatever a wrong program does
        return type(error).__name__


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"args": 3, "expected": 1}, "args of its test 2 is a int, expected the list of arguments"),
        ({"args": [1], "expected": float("nan")}, "expected of its test 2 cannot be told as JSON"),
        ({"args": [[float("inf")]], "expected": 1}, "args of its test 2 cannot be told as JSON"),
        ({"args": [1], "expected": {"a": (1, 2)}}, "a tuple is no JSON"),
        ({"args": [1], "expected": "\ud800"}, "half of a surrogate pair"),
        ({"stdin": "1", "stdout": ["2"]}, "stdout of its test 2 is a list, expected text"),
        ({"stdin": 1, "stdout": "2"}, "stdin of its test 2 is a int, expected text"),
        ({"stdin": "1", "json": float("nan")}, "json of its test 2 cannot be told as JSON"),
    ],
)
def test_tests_that_nothing_can_pass_are_refused(test: dict[str, object], said: str) -> None:
    right = {"args": [1], "expected": 2, "stdin": "", "stdout": "", "json": []}
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_tests([{key: right[key] for key in test}, test], "task t")


@pytest.mark.parametrize(
    "tests", [[], {}, None, [{"args": [1]}], [1], [{"stdin": "", "stdout": ""}, {"args": []}]]
)
def test_what_is_no_list_of_tests_of_one_kind_is_refused(tests: object) -> None:
    with pytest.raises(ConfigError, match="task t has no tests as its answer"):
        check_tests(tests, "task t")


@pytest.mark.parametrize(
    ("printed", "share"), [("1\n2\n3\n", 1.0), ("1 \r\n2\r\n3", 1.0), ("1 2 3\n", 0.0)]
)
async def test_printed_output_is_compared_by_lines(
    printed: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(sandbox: FakeSandbox, command: Command) -> ExecResult:
        stdout = json.dumps([[printed]]).encode()
        return ExecResult(status="exited", exit_code=0, stdout=stdout)

    monkeypatch.setattr(FakeSandbox, "answer", answer)
    async with make_sandbox(SandboxOptions(backend="fake")) as sandbox:
        tests = [{"stdin": "", "stdout": "1\n2\n3\n"}]
        assert await share_passed(sandbox, b"", tests, 1, 1) == share


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
