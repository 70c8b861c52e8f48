import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.envs.swe.grade import of_instance
from agentrl.envs.swe.instances import read_instances, tail
from agentrl.envs.swe.patch import touched
from agentrl.errors import ConfigError

TEST_PATCH = (
    "diff --git a/lib/checks.py b/lib/checks.py\n--- a/lib/checks.py\n+++ b/lib/checks.py\n"
)
BENCH: dict[str, Any] = {
    "instance_id": "owner__lib-1",
    "repo": "owner/lib",
    "base_commit": "a" * 40,
    "problem_statement": "It is wrong.",
    "patch": "diff --git a/lib/a.py b/lib/a.py\n",
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": json.dumps(["lib/checks.py::t[a b]", "lib/checks.py::t[a b]"]),
    "PASS_TO_PASS": json.dumps([]),
    "version": "1.0",
    "hints_text": "",
}
GYM = {
    **BENCH,
    "instance_id": "owner__lib-2",
    "FAIL_TO_PASS": ["t.py::a"],
    "PASS_TO_PASS": ["t.py::b"],
}
SMITH = {
    "instance_id": "owner__lib.1234abcd.func_pm_remove__abc",
    "repo": "swesmith/owner__lib.1234abcd",
    "problem_statement": "It is wrong.",
    "patch": "diff --git a/lib/a.py b/lib/a.py\n",
    "image_name": "images/lib",
    "FAIL_TO_PASS": ["tests/test_a.py::T::a"],
    "PASS_TO_PASS": [],
}
R2E = {
    "repo_name": "lib",
    "docker_image": "images/lib:1",
    "commit_hash": "b" * 40,
    "problem_statement": "It is wrong.",
    "expected_output_json": json.dumps({"T.a": "PASSED", "b": "PASSED", "c": "FAILED"}),
    "execution_result_content": json.dumps(
        {
            "old_commit_res_stdout": "\x1b[31mFAILED\x1b[0m r2e_tests/test_1.py::T::a - no\n"
            "PASSED r2e_tests/test_1.py::b\n",
            "test_file_names": ["test_1.py"],
            "test_file_codes": ["def b(): ..."],
        }
    ),
}


def lines(folder: Path, *rows: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_swe_bench(tmp_path: Path) -> None:
    ((one,), problems) = read_instances(lines(tmp_path, BENCH))
    assert one.fail_to_pass == ("lib/checks.py::t[a b]",)
    assert (one.pass_to_pass, one.patch_is_bug, problems) == ((), False, ())
    grading = of_instance(one, root="/testbed")
    assert grading.arguments == ("lib/checks.py",)
    assert grading.seal.holds("lib/checks.py")
    assert not grading.seal.holds("lib/a.py")


@pytest.mark.parametrize("packed", [json.dumps(["a::b"]), "['a::b']", ["a::b"]])
def test_a_list_may_be_packed_in_text(tmp_path: Path, packed: object) -> None:
    ((one,), _) = read_instances(lines(tmp_path, {**BENCH, "FAIL_TO_PASS": packed}))
    assert one.fail_to_pass == ("a::b",)


def test_swe_gym_swe_smith_and_r2e(tmp_path: Path) -> None:
    ((gym, smith, r2e), _) = read_instances(lines(tmp_path, GYM, SMITH, R2E))
    assert (gym.fail_to_pass, gym.pass_to_pass) == (("t.py::a",), ("t.py::b",))
    assert (smith.patch_is_bug, smith.commit, smith.image) == (True, "", "images/lib")
    assert (r2e.id, r2e.fail_to_pass, r2e.pass_to_pass) == ("lib__bbbbbbbbbbbb", ("T.a",), ("b",))
    assert r2e.test_files == {"r2e_tests/test_1.py": "def b(): ..."}
    assert r2e.command.names == "tail"
    assert r2e.patch == ""


def test_a_commit_of_r2e_is_the_reference(tmp_path: Path) -> None:
    diffs = [
        {"header": {"file": {"path": path}}, "old_file_content": old, "new_file_content": new}
        for path, old, new in (
            ("lib/a.py", "x = 1\n", "x = 2\n"), ("lib/new.py", "", "y = 1\n"),
            ("lib/old.py", "z = 1\n", None), ("docs/a.md", "a", "b"),
        )
    ]  # fmt: skip
    commit = json.dumps({"file_diffs": [*diffs, {"header": "odd"}, 3], "old_commit_hash": "c^"})
    ((one,), _) = read_instances(lines(tmp_path, {**R2E, "parsed_commit_content": commit}))
    assert touched(one.patch) == {"lib/a.py", "lib/new.py", "lib/old.py"}
    assert "+x = 2" in one.patch
    assert "new file mode" in one.patch
    assert one.patch_is_bug is False
    for odd in ({}, {"file_diffs": 3}, {"file_diffs": [{"header": {"file": {"path": 4}}}]}):
        ((one,), _) = read_instances(lines(tmp_path, {**R2E, "parsed_commit_content": odd}))
        assert one.patch == ""


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    pq.write_table(pa.Table.from_pylist([GYM]), path)  # pyright: ignore[reportUnknownMemberType]  # partial
    ((one,), _) = read_instances(path)
    assert one.pass_to_pass == ("t.py::b",)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: it is no JSON"),
        ("[1]", "it is a list, expected an object"),
        ({**BENCH, "repo": None}, "repo is nothing, expected text"),
        ({**BENCH, "problem_statement": 3}, "problem_statement is a int"),
        ({**BENCH, "FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
        ({**BENCH, "FAIL_TO_PASS": "a::b"}, "neither JSON nor a Python list"),
        ({**BENCH, "FAIL_TO_PASS": [1]}, "no list of test ids"),
        ({**BENCH, "PASS_TO_PASS": BENCH["FAIL_TO_PASS"]}, "in FAIL_TO_PASS and in PASS_TO_PASS"),
        ({**R2E, "expected_output_json": "[]"}, "expected_output_json is no object"),
        ({**R2E, "execution_result_content": '{"test_file_names": ["a"]}'}, "of one length"),
        (GYM, "stands for another one too"),
        ({**BENCH, "FAIL_TO_PASS": ["t.py::test_d[a"]}, "'t.py::test_d[a' is no id of a test"),
        ({**BENCH, "FAIL_TO_PASS": ["t.py::b]"]}, "'t.py::b]' is no id"),
        ({**BENCH, "PASS_TO_PASS": ["[100%]"]}, "'[100%]' is no id"),
        ({**BENCH, "PASS_TO_PASS": ["test_d"]}, "'test_d' is no id"),
        ({**BENCH, "PASS_TO_PASS": ["t.py::"]}, "'t.py::' is no id"),
        ({**BENCH, "PASS_TO_PASS": ["::test_d"]}, "'::test_d' is no id"),
        ({**BENCH, "PASS_TO_PASS": ["t.py::a\nb"]}, "is no id"),
        ({**BENCH, "repo": "django/django", "PASS_TO_PASS": ["[ 97%]"]}, "'[ 97%]' is no id"),
        ({**BENCH, "repo": "sympy/sympy", "FAIL_TO_PASS": ["test_d[a"]}, "'test_d[a' is no id"),
        ({**R2E, "expected_output_json": {"T.a[x": "PASSED"}}, "'T.a[x' is no id"),
    ],
)
def test_a_bad_line_is_named_or_left_out(tmp_path: Path, row: object, said: str) -> None:
    path = lines(tmp_path, GYM, row, SMITH)
    with pytest.raises(ConfigError, match="line 2") as error:
        read_instances(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    found, (problem,) = read_instances(path, skip_bad=True)
    assert [one.id for one in found] == [GYM["instance_id"], SMITH["instance_id"]]
    assert said in problem


def test_odd_ids_are_ids(tmp_path: Path) -> None:
    odd = ["t.py::t[a b]", "t.py::t[[]", "t.py::t[x[y]]", "t.py::C::t[]]", "t.py::t[a::b]"]
    ((one,), _) = read_instances(lines(tmp_path, {**BENCH, "PASS_TO_PASS": odd}))
    assert one.pass_to_pass == tuple(odd)
    django = {**BENCH, "repo": "django/django", "FAIL_TO_PASS": ["Forms [with] words (a.T)"]}
    ((one,), _) = read_instances(lines(tmp_path, django))
    assert one.fail_to_pass == ("Forms [with] words (a.T)",)


def test_files_that_are_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    for name in ("a.parquet", "nowhere.jsonl"):
        with pytest.raises(ConfigError, match=name):
            read_instances(tmp_path / name)
    with pytest.raises(ConfigError, match="no instance"):
        read_instances(lines(tmp_path, "{"), skip_bad=True)


def test_djangos_tests_are_run_by_module(tmp_path: Path) -> None:
    patch = TEST_PATCH.replace("lib/checks.py", "tests/admin/tests.py")
    row = {**BENCH, "repo": "django/django", "test_patch": patch, "FAIL_TO_PASS": ["t (a.T)"]}
    ((one,), _) = read_instances(lines(tmp_path, row))
    assert one.command.reads == "unittest"
    grading = of_instance(one, root="/r")
    assert grading.arguments == ("admin.tests",)
    assert grading.id_of("admin.tests.T.t") == "tests/admin/tests.py::T::t"


def test_djangos_ids_have_their_files_then(tmp_path: Path) -> None:
    patch = TEST_PATCH.replace("lib/checks.py", "tests/admin/tests.py")
    failing = ["test_a (admin.tests.T)", "test_b (admin.tests.T.test_b)", "Says (it).", "t (a.T)"]
    row = {**BENCH, "repo": "django/django", "test_patch": patch, "FAIL_TO_PASS": failing}
    ((one,), _) = read_instances(lines(tmp_path, row))
    file = "tests/admin/tests.py"
    called = (f"{file}::T::test_a", f"{file}::T::test_b", "Says (it).", "a.T.t")
    assert of_instance(one, root="/r").fail_to_pass == called


def test_tail() -> None:
    assert tail("a/b.py::C::d[x]") == "C.d[x]"
    assert tail("C.d") == "C.d"
