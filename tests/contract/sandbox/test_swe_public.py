"""Instances of the public sets, five of each with its quirks, played from a clone: graded right."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from agentrl.cli.dispatch import main
from agentrl.envs import default_services
from agentrl.envs.swe.patch import make_patch
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import SandboxOptions
from agentrl.types import Agent, Score
from tests.contract.sandbox import shop

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(120)]

SOURCE: Final = "src/shop/prices.py"
TESTS: Final = "tests/test_prices.py"
REPAIR: Final = make_patch({SOURCE: shop.WRONG}, {SOURCE: shop.PRICES})
BUG: Final = make_patch({SOURCE: shop.PRICES}, {SOURCE: shop.WRONG})
OLD_TESTS: Final = shop.TESTS.replace("(50, 555555555), (80, 222222222)", "(0, 1111111110)")
NEW_TESTS: Final = shop.TESTS.replace(
    "(80, 222222222)])",
    '(80, 222222222)], ids=["no", "a half", "x[y]"])',
)
TEST_PATCH: Final = make_patch({TESTS: OLD_TESTS}, {TESTS: shop.TESTS})
NAMED_PATCH: Final = make_patch({TESTS: OLD_TESTS}, {TESTS: NEW_TESTS})
FAIL: Final = [f"{TESTS}::{name}" for name in shop.FAILING]
PASS: Final = [f"{TESTS}::{name}" for name in ("test_sum", "test_floor", "test_refused")]
NAMED_FAIL: Final = [f"{TESTS}::test_percent[a half]", f"{TESTS}::test_percent[x[y]]"]
CHANGE: Final = {"file_diffs": [{"header": {"file": {"path": SOURCE}},
    "old_file_content": shop.WRONG, "new_file_content": shop.PRICES}]}  # fmt: skip
R2E_LOG: Final = (
    "\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::test_sum\nPASSED r2e_tests/test_1.py::test_sum\n"
    "FAILED r2e_tests/test_1.py::test_percent[50-555555555] - assert\nPASSED r2e_te"
)


def swe_bench(commit: str, **changes: object) -> dict[str, object]:
    return {
        "repo": "acme/shop", "base_commit": commit, "problem_statement": "A discount adds.",
        "patch": REPAIR, "test_patch": TEST_PATCH, "FAIL_TO_PASS": json.dumps(FAIL),
        "PASS_TO_PASS": json.dumps(PASS), "version": "1", **changes,
    }  # fmt: skip


def r2e(**changes: object) -> dict[str, object]:
    log: dict[str, object] = {
        "test_file_names": ["test_1.py"], "test_file_codes": [shop.TESTS],
        "old_commit_res_stdout": R2E_LOG,
    }  # fmt: skip
    expected = {f"test_percent[{i}]": "PASSED" for i in ("50-555555555", "80-222222222")} | {
        "test_sum": "PASSED"
    }
    return {
        "repo_name": "acme/shop", "commit_hash": "f" * 40, "problem_statement": "A discount adds.",
        "docker_image": "none", "expected_output_json": json.dumps(expected),
        "execution_result_content": json.dumps(log), **changes,
    }  # fmt: skip


def instances(commit: str, clean: str) -> dict[str, list[dict[str, object]]]:
    bench = [
        swe_bench(commit),
        swe_bench(commit, FAIL_TO_PASS=str(FAIL), PASS_TO_PASS=str(PASS)),
        swe_bench(commit, test_patch=NAMED_PATCH, FAIL_TO_PASS=json.dumps(NAMED_FAIL)),
        swe_bench(commit, PASS_TO_PASS="[]"),
        swe_bench(commit, FAIL_TO_PASS=json.dumps([*FAIL, FAIL[0]]), hints_text=None),
    ]
    lists = {"FAIL_TO_PASS": FAIL, "PASS_TO_PASS": PASS}
    gym = [
        swe_bench(commit, **lists),
        swe_bench(commit, **lists, image_name="ignored"),
        swe_bench(commit, **lists, test_patch=NAMED_PATCH) | {"FAIL_TO_PASS": NAMED_FAIL},
        swe_bench(commit, **lists) | {"PASS_TO_PASS": None},
        {"fail_to_pass": FAIL, "pass_to_pass": PASS, "issue": "A discount adds."}
        | {k: swe_bench(commit)[k] for k in ("repo", "base_commit", "patch", "test_patch")},
    ]
    smith_lists = {
        "FAIL_TO_PASS": FAIL,
        "PASS_TO_PASS": [*PASS, f"{TESTS}::test_percent[0-1111111110]"],
    }
    common: dict[str, object] = {"repo": "acme/shop", "patch": BUG, "problem_statement": "It adds."}
    smith: list[dict[str, object]] = [
        {**common, **smith_lists, "repo": "swesmith/shop.1a2b", "base_commit": clean},
        {**common, **smith_lists},
        {**common, **smith_lists, "issue": "unused", "image_name": "x"},
        {**common, "FAIL_TO_PASS": FAIL[:1]},
        {**common, **{key: json.dumps(tests) for key, tests in smith_lists.items()}},
    ]
    expected = {"test_percent[50-555555555]": "PASSED", "test_gone": "FAILED", "test_sum": "PASSED"}
    from_r2e = [
        r2e(),
        r2e(expected_output_json=expected),
        r2e(
            execution_result_content={**json.loads(str(r2e()["execution_result_content"])), "x": 1}
        ),
        r2e(repo="acme/shop", parsed_commit_content=json.dumps(CHANGE)),
        r2e(commit_hash="a" * 40, issue="unused"),
    ]
    return {"swe-bench": bench, "swe-gym": gym, "swe-smith": smith, "r2e": from_r2e}


@dataclass(frozen=True)
class Clones:
    folder: Path
    rows: Mapping[str, list[dict[str, object]]]


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clones]:
    folder = tmp_path_factory.mktemp("clones")
    clone = shop.write(folder / "acme__shop", {**shop.FILES, TESTS: OLD_TESTS})
    clean = _committed(clone, init=True)
    (clone / SOURCE).write_text(shop.WRONG)
    commit = _committed(clone)
    shop.write(clone, {SOURCE: "unfinished work", TESTS: "too"})
    smith = folder / "smith"
    shop.write(smith / "acme__shop", shop.FILES)
    shop.write(smith / "swesmith__shop.1a2b", shop.FILES)
    wrong = folder / "r2e"
    shop.write(wrong / "acme__shop", {**shop.FILES, SOURCE: shop.WRONG, TESTS: OLD_TESTS})
    with pytest.MonkeyPatch.context() as patch:
        shop.use_own_pytest(patch)
        yield Clones(folder, instances(commit, clean))


def _committed(folder: Path, *, init: bool = False) -> str:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@x"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    if init:
        git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    return git("rev-parse", "HEAD")


async def _score(config: SweSandbox.Config, index: int, agent: Agent) -> Score:
    env = SweSandbox(config)
    tasks = [t for found in SweSandbox.list_tasks(config).values() for t in found]
    task = sorted(tasks, key=lambda task: task.id)[index]
    await env.areset(options={"task": task})
    outcome = await shop.play(env, agent)
    await env.aclose()
    assert isinstance(outcome, Score), outcome
    return outcome


@pytest.mark.parametrize("kind", ["swe-bench", "swe-gym", "swe-smith", "r2e"])
async def test_five_instances_are_read_and_graded_right(
    kind: str, clones: Clones, tmp_path: Path
) -> None:
    rows = [{"instance_id": f"acme__shop-{i}", **row} for i, row in enumerate(clones.rows[kind])]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    repos = clones.folder / {"swe-smith": "smith", "r2e": "r2e"}.get(kind, "")
    options = SandboxOptions(backend="bwrap")
    config = SweSandbox.Config(tasks=str(file), repos=str(repos), sandbox=options)
    honest = shop.BashAgent(shop.put(SOURCE, shop.PRICES))
    agent = honest if kind == "r2e" else SweSandbox.expert()
    wrong = shop.BashAgent(shop.put(SOURCE, shop.WRONG + "# nothing"))
    scores = await asyncio.gather(
        *(_score(config, i, agent) for i in range(5)), _score(config, 0, wrong)
    )
    await default_services().sandboxes.close()
    assert [score.value for score in scores] == [1] * 5 + [0], scores
    # One of R2E's has a reference that a decoy can be validated by; the single failing test of one
    # of SWE-smith's expects a small number, which could be guessed.
    guarded = {"swe-smith": 5, "r2e": 1}.get(kind, 6)
    assert sum(score.parts["unguarded"] == 0 for score in scores) == guarded


def test_a_broken_line_is_named_or_left_out(
    clones: Clones, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"instance_id": "a", **clones.rows["swe-bench"][0]}
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n{broken\n")
    argv = ["eval", "--env", "swe_sandbox", "--env.tasks", str(file), "--sandbox", "bwrap"]
    played = ["--env.repos", str(clones.folder), "--agent", "null", "--eval.split", "train"]
    assert main([*argv, *played]) == 2
    said = capsys.readouterr().err
    assert f"{file}, line 2" in said
    assert said.count("\n") == 1
    assert main([*argv, *played, "--env.skip-bad"]) == 0
    assert main([*argv, *played[2:], "--env.skip-bad"]) == 2
    assert "names no image; give the folder" in capsys.readouterr().err


_LACKING: Final = f"{TESTS}::test_percent[50-99]"


@pytest.mark.parametrize("kind", ["swe-bench", "swe-smith", "r2e"])
def test_an_id_that_is_not_collected_is_named_or_left_out(
    kind: str, clones: Clones, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"instance_id": "good", **clones.rows[kind][0]}
    expected = {"test_percent[50-555555555]": "PASSED", "test_percent[50-99]": "PASSED"}
    lacking = r2e(expected_output_json=expected) if kind == "r2e" else good
    bad = {**lacking, "instance_id": "bad"}
    if kind != "r2e":
        bad["FAIL_TO_PASS"] = [*FAIL, _LACKING]
    file = tmp_path / "tasks.jsonl"
    file.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    repos = clones.folder / {"swe-smith": "smith", "r2e": "r2e"}.get(kind, "")
    config = SweSandbox.Config(
        tasks=str(file), repos=str(repos), sandbox=SandboxOptions(backend="bwrap")
    )
    argv = ["eval", "--env", "swe_sandbox", "--env.tasks", str(file), "--sandbox", "bwrap"]
    listed = SweSandbox.list_tasks(config).items()
    split = next(split for split, tasks in listed if "bad" in [task.id for task in tasks])
    played = ["--env.repos", str(repos), "--agent", "null", "--eval.split", split]
    assert main([*argv, *played]) == 1
    assert "bad: its runner collects no test" in (said := capsys.readouterr().err)
    assert "test_percent[50-99]; --env.skip-bad" in said
    left = SweSandbox.list_tasks(config.model_copy(update={"skip_bad": True}))
    assert [task.id for tasks in left.values() for task in tasks] == ["good"]


async def test_ids_are_looked_for_once(
    clones: Clones, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tasks.jsonl"
    # Only the reference makes the new test's import possible.
    commit = str(clones.rows["swe-bench"][0]["base_commit"])
    row = swe_bench(commit, PASS_TO_PASS=json.dumps(PASS[:2]))  # no other has just these
    file.write_text(json.dumps({"instance_id": str(tmp_path), **row}))
    config = SweSandbox.Config(
        tasks=str(file), repos=str(clones.folder), sandbox=SandboxOptions(backend="bwrap")
    )
    counts: list[int] = []
    for _ in range(3):
        env = SweSandbox(config)
        (tasks,) = SweSandbox.list_tasks(config).values()
        await env.areset(options={"task": tasks[0]})
        counts.append(env.sandbox.num_execs)
        await env.aclose()
        await env.services.sandboxes.close()
    assert counts[0] > counts[1] == counts[2]
