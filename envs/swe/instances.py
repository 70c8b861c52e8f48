"""Instances of the public formats: SWE-bench, SWE-Gym, SWE-smith and R2E, as JSONL or Parquet.

Each format names and packs the same things in its own way; here they become one `Instance`.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from agentrl.envs.swe.commands import COMMANDS, R2E, RUNNER_IN_IMAGE, TestCommand
from agentrl.envs.swe.logs import parse_pytest
from agentrl.envs.swe.patch import make_patch
from agentrl.errors import ConfigError

_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "id": ("instance_id", "task_id"),
    "repo": ("repo", "repo_name"),
    "commit": ("base_commit", "commit_hash"),
    "problem": ("problem_statement", "issue"),
    "fail_to_pass": ("FAIL_TO_PASS", "fail_to_pass"),
    "pass_to_pass": ("PASS_TO_PASS", "pass_to_pass"),
    "image": ("image_name", "docker_image", "image"),
    "dockerfile": ("dockerfile", "Dockerfile"),
    "patch": ("patch",),
    "test_patch": ("test_patch",),
    "expected": ("expected_output_json",),
    "executed": ("execution_result_content",),
    "change": ("parsed_commit_content",),
}
_NO_ID: Final = re.compile(r"\s*|\[ *\d+%\]|.*[\x00-\x1f\x7f].*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A repository at a commit, an issue, and the tests that decide."""

    id: str
    repo: str
    problem: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    command: TestCommand
    commit: str = ""
    """The commit to start from; "" where the image is at it."""
    image: str = ""
    dockerfile: str = ""
    patch: str = ""
    """The reference; "" if unknown."""
    patch_is_bug: bool = False
    """SWE-smith: `patch` brings the bug in, so the repair is its reverse."""
    test_patch: str = ""
    test_files: Mapping[str, str] = field(default_factory=dict[str, str])
    """R2E: the tests themselves, by path; they are not in the repository."""


class _Unreadable(Exception):
    """One instance is none; the message says why."""


def read_instances(
    path: Path, *, skip_bad: bool = False
) -> tuple[tuple[Instance, ...], tuple[str, ...]]:
    """The instances of a file, and a sentence for each that was left out.

    Args:
        path: a `.jsonl` or `.parquet` file.
        skip_bad: leave out what cannot be read, instead of raising.

    Raises:
        ConfigError: The file cannot be read; or an instance, which is named by its line or row.
    """
    found: dict[str, Instance] = {}
    problems: list[str] = []
    for where, row in _read_rows_of_task_file(path):
        try:
            instance = _parse_instance_row(row)
            if instance.id in found:
                raise _Unreadable(f"the id {instance.id} stands for another one too")
            found[instance.id] = instance
        except _Unreadable as error:
            problem = f"{path}, {where}: {error}"
            if not skip_bad:
                raise ConfigError(f"{problem}; --env.skip-bad leaves such ones out") from error
            problems.append(problem)
    if not found:
        raise ConfigError(f"{path} holds no instance that can be read")
    return tuple(found.values()), tuple(problems)


def _read_rows_of_task_file(path: Path) -> Iterator[tuple[str, object]]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(path, partitioning=None)  # pyright: ignore[reportUnknownMemberType]  # its stub is partial
            for i, row in enumerate(table.to_pylist()):
                yield f"row {i + 1}", row
            return
        lines = path.read_bytes().split(b"\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tasks in {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"line {number}", line


def _parse_instance_row(row: object) -> Instance:
    if isinstance(row, bytes):
        try:
            row = json.loads(row)
        except (ValueError, RecursionError) as error:
            raise _Unreadable(f"it is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise _Unreadable(f"it is a {type(row).__name__}, expected an object")
    fields = cast("dict[str, object]", row)
    r2e = _find_field_by_aliases(fields, "expected") is not None
    repo = _read_text_or_empty(fields, "repo", needed=True)
    common = Instance(
        id=_read_text_or_empty(fields, "id", needed=not r2e),
        repo=repo,
        problem=_read_text_or_empty(fields, "problem", needed=True),
        fail_to_pass=(),
        pass_to_pass=(),
        command=R2E if r2e else COMMANDS.get(repo, RUNNER_IN_IMAGE),
        commit=_read_text_or_empty(fields, "commit"),
        image=_read_text_or_empty(fields, "image"),
        dockerfile=_read_text_or_empty(fields, "dockerfile"),
        patch=_read_text_or_empty(fields, "patch"),
        test_patch=_read_text_or_empty(fields, "test_patch"),
    )
    # Refuse what no runner calls a test: half of an id, or a word of a log.
    instance = _fill_r2e_fields(fields, common) if r2e else _fill_swe_fields(fields, common)
    for test in (*instance.fail_to_pass, *instance.pass_to_pass):
        if not _is_possible_test_id(test, instance.command):
            raise _Unreadable(f"{test!r} is no id of a test; it may have been cut at a blank")
    return instance


def _fill_swe_fields(fields: Mapping[str, object], common: Instance) -> Instance:
    fail_to_pass = _read_test_ids_field(fields, "fail_to_pass")
    if not fail_to_pass:
        raise _Unreadable("FAIL_TO_PASS is empty, so no test could show that it is solved")
    both = set(fail_to_pass) & set(pass_to_pass := _read_test_ids_field(fields, "pass_to_pass"))
    if both:
        raise _Unreadable(f"{min(both)} is in FAIL_TO_PASS and in PASS_TO_PASS")
    return replace(
        common,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        patch_is_bug=common.repo.startswith("swesmith/")
        or not (common.commit or common.test_patch),
    )


def _fill_r2e_fields(fields: Mapping[str, object], common: Instance) -> Instance:
    """R2E: the expected outcome of every test, and the tests' text beside the old log."""
    expected = _read_mapping_field(fields, "expected")
    executed = _read_mapping_field(fields, "executed")
    passing = [test for test, outcome in expected.items() if outcome == "PASSED"]
    log = parse_pytest(str(executed.get("old_commit_res_stdout", "")))
    old = {tail(test) for test, outcome in log.items() if outcome == "passed"}
    names, codes = (executed.get(f"test_file_{key}", []) for key in ("names", "codes"))
    if not isinstance(names, list) or not isinstance(codes, list):
        raise _Unreadable("test_file_names and test_file_codes are no lists")
    files = [*zip(cast("list[object]", names), cast("list[object]", codes), strict=False)]
    if len(files) != max(len(names), len(codes)):  # pyright: ignore[reportUnknownArgumentType]  # of any
        raise _Unreadable("test_file_names and test_file_codes are no lists of one length")
    fail_to_pass = tuple(test for test in passing if test not in old)
    if not fail_to_pass:
        raise _Unreadable("expected_output_json has no test that passes only after the change")
    return replace(
        common,
        id=common.id or f"{common.repo}__{common.commit[:12]}",
        commit="",  # the image is at the commit before it
        patch=common.patch or _make_patch_from_r2e_commit(_read_mapping_field(fields, "change")),
        fail_to_pass=fail_to_pass,
        pass_to_pass=tuple(test for test in passing if test in old),
        test_files={f"r2e_tests/{name}": str(code) for name, code in files},
    )


def _make_patch_from_r2e_commit(commit: Mapping[str, object]) -> str:
    """R2E: what the commit did to Python files; "" if that is not told."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    diffs = commit.get("file_diffs")
    for diff in cast("list[object]", diffs) if isinstance(diffs, list) else []:
        match diff:
            case {
                "header": {"file": {"path": str(path)}},
                "old_file_content": str() | None as old,
                "new_file_content": str() | None as new,
            } if path.endswith(".py"):
                before[path], after[path] = old or "", new or ""
            case _:
                pass
    return make_patch(before, after)


def tail(test: str) -> str:
    """An id without its file: `a.py::Class::test` as `Class.test`."""
    file, _, rest = test.partition("::")
    return ".".join(rest.split("::")) if rest else file


def _find_field_by_aliases(fields: Mapping[str, object], name: str) -> object:
    return next((fields[key] for key in _ALIASES[name] if fields.get(key) is not None), None)


def _read_text_or_empty(fields: Mapping[str, object], name: str, *, needed: bool = False) -> str:
    value = _find_field_by_aliases(fields, name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value.strip()):
        got = "nothing" if not value else f"a {type(value).__name__}"
        raise _Unreadable(f"{_ALIASES[name][0]} is {got}, expected text")
    return value


def _read_test_ids_field(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    """A list of test ids, which may be packed in text as JSON or as Python writes it."""
    value = _find_field_by_aliases(fields, name)
    if isinstance(value, str):
        value = _parse_json_or_python_literal(value, _ALIASES[name][0])
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(v, str) for v in cast("list[object]", value)
    ):
        raise _Unreadable(f"{_ALIASES[name][0]} is no list of test ids")
    return tuple(dict.fromkeys(cast("Sequence[str]", value)))


def _is_possible_test_id(test: str, command: TestCommand) -> bool:
    if _NO_ID.fullmatch(test) or command.reads == "unittest":
        return not _NO_ID.fullmatch(test)
    file, _, name = test.partition("::") if command.names == "full" else ("-", "", test)
    base, bracket, _ = name.partition("[")
    return bool(file and base.strip()) and (name.endswith("]") if bracket else "]" not in base)


def _read_mapping_field(fields: Mapping[str, object], name: str) -> dict[str, object]:
    value = _find_field_by_aliases(fields, name)
    if isinstance(value, str):
        value = _parse_json_or_python_literal(value, _ALIASES[name][0])
    if value is not None and not isinstance(value, dict):
        raise _Unreadable(f"{_ALIASES[name][0]} is no object")
    return cast("dict[str, object]", value or {})


def _parse_json_or_python_literal(text: str, key: str) -> object:
    if not text.strip():
        return None
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        pass
    try:
        return cast("object", ast.literal_eval(text))
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise _Unreadable(f"{key} is text that is neither JSON nor a Python list") from error
