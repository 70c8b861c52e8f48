"""Runs a candidate's program on hidden tests, in a sandbox that its author has never been in.

No byte that the candidate writes is a verdict: the sandbox is told inputs only, and what comes back
is compared with the expected values here. Whoever wants to pass has to compute them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from agentrl.errors import ConfigError
from agentrl.sandboxes import Sandbox

SOLUTION: Final = "solution.py"
_MAX_DEPTH: Final = 64

# What runs beside the candidate's code is at its mercy; all that can be done to it is to spoil its
# results.
_HEAD: Final = """
import json, os, subprocess, sys
spec = json.load(sys.stdin)
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.stdin = open(os.devnull)
results = []
"""
_CALLS: Final = """
sys.path.insert(0, "")
import importlib
function = getattr(importlib.import_module("solution"), "solve")
for arguments in spec["inputs"]:
    try:
        results.append([json.dumps(function(*arguments), allow_nan=False)])
    except Exception:
        results.append([])
"""
_PROGRAMS: Final = """
for text in spec["inputs"]:
    try:
        done = subprocess.run(["python3", "solution.py"], input=text.encode(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=spec["timeout_s"])
        results.append([done.stdout.decode(errors="replace")] * (done.returncode == 0))
    except subprocess.TimeoutExpired:
        results.append([])
"""
_TAIL: Final = """
data = json.dumps(results).encode()
while data:
    data = data[os.write(out, data):]
os._exit(0)
"""


def check_tests(tests: object, where: str) -> None:
    """Raise a ConfigError if these are no tests."""
    found = cast("list[object]", tests) if isinstance(tests, list) else []
    kinds = {_keys(test) for test in found}
    if kinds not in ({("args", "expected")}, {("stdin", "stdout")}):
        raise ConfigError(
            f'{where} has no tests as its answer, expected a list of {{"args", "expected"}} or of '
            '{"stdin", "stdout"} objects'
        )


def _keys(test: object) -> tuple[str, ...]:
    return tuple(sorted(cast("dict[str, object]", test))) if isinstance(test, dict) else ()


async def share_passed(
    sandbox: Sandbox,
    code: bytes,
    tests: Sequence[Mapping[str, Any]],
    timeout_s: float,
    all_s: float,
) -> float:
    """The share of the tests that a program passes; the sandbox is reset before.

    One run of a program may take `timeout_s`, all tests together `all_s`: else none has passed.

    Raises:
        SandboxError: The sandbox failed, so there is no score.
    """
    await sandbox.reset()
    await sandbox.write_file(SOLUTION, code)
    calls = "args" in tests[0]
    spec = {"inputs": [t["args" if calls else "stdin"] for t in tests], "timeout_s": timeout_s}
    done = await sandbox.exec(
        ["python3", "-I", "-c", _HEAD + (_CALLS if calls else _PROGRAMS) + _TAIL],
        stdin=json.dumps(spec).encode(),
        timeout_s=all_s,
    )
    results = _parsed(done.stdout) if done.ok and not done.stdout_truncated else None
    if not isinstance(results, list) or len(cast("list[object]", results)) != len(tests):
        return 0.0
    pairs = zip(cast("list[object]", results), tests, strict=True)
    return sum(_passes(result, test) for result, test in pairs) / len(tests)


def _passes(result: object, test: Mapping[str, Any]) -> bool:
    match result:
        case [str(text)] if "args" in test:
            return same(_parsed(text), test["expected"])
        case [str(text)]:
            return _lines(text) == _lines(test["stdout"])
        case _:
            return False


def _lines(lines: Sequence[str]) -> list[str]:
    """Without white space at the ends of lines, and without empty lines at the end."""
    found = [line.rstrip() for line in lines]
    while found and not found[-1]:
        found.pop()
    return found


class _NoJson:
    """Equal to nothing, not even itself."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _parsed(text: str | bytes) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NoJson()


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def same(found: object, expected: object, depth: int = 0) -> bool:
    """Equal in type and value; floats to nine digits."""
    if depth > _MAX_DEPTH or type(found) is not type(expected):
        return False
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(found, list) and isinstance(expected, list):
        pairs = zip(cast("list[object]", found), cast("list[object]", expected), strict=False)
        return len(cast("list[object]", found)) == len(cast("list[object]", expected)) and all(
            same(a, b, depth + 1) for a, b in pairs
        )
    if isinstance(found, dict) and isinstance(expected, dict):
        a, b = cast("dict[str, object]", found), cast("dict[str, object]", expected)
        return a.keys() == b.keys() and all(same(a[key], b[key], depth + 1) for key in a)
    return found == expected
