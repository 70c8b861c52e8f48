"""Runs a candidate's program on hidden tests, in a sandbox that its author has never been in.

No byte that the candidate writes is a verdict: the sandbox is told inputs only, and what comes back
is compared with the expected values here. Whoever wants to pass has to compute them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from agentrl.errors import ConfigError
from agentrl.sandboxes import Sandbox
from agentrl.verifiers.compare import NotJson, check_json, same_lines, same_printed_json

SOLUTION: Final = "solution.py"
_ROOM: Final = 8
"""So many times the length of what is expected may a right result take on its way: all characters
as escapes, floats with all digits, JSON with indents."""

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
    """Raise a ConfigError unless these are tests that a right program can pass."""
    found = cast("list[object]", tests) if isinstance(tests, list) else []
    kinds = {_sort_keys_of_test(test) for test in found}
    if len(kinds) != 1 or not kinds <= _KINDS.keys():
        raise ConfigError(
            f"{where} has no tests as its answer, expected a list of objects that all have the "
            f"keys {' or '.join(' and '.join(keys) for keys in _KINDS)}"
        )
    for number, test in enumerate(cast("list[dict[str, object]]", found), start=1):
        for key, value in test.items():
            said = _describe_fault_in_test(key, value)
            if said:
                raise ConfigError(f"{where}: {key} of its test {number} {said}")


def _sort_keys_of_test(test: object) -> tuple[str, ...]:
    return tuple(sorted(cast("dict[str, object]", test))) if isinstance(test, dict) else ()


def _describe_fault_in_test(key: str, value: object) -> str:
    """What is wrong with a part of a test; "" if nothing is."""
    kind = type(value)
    if key == "args" and kind is not list:
        return f"is a {kind.__name__}, expected the list of arguments"
    if key in ("stdin", "stdout") and kind is not str:
        return f"is a {kind.__name__}, expected text"
    try:
        check_json(value)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which no program can read or print"
    except NotJson as error:
        return f"cannot be told as JSON: {error}"
    return ""


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
    expected = [test[_KINDS[_sort_keys_of_test(test)][1]] for test in tests]
    done = await sandbox.exec(
        ["python3", "-I", "-c", _HEAD + (_CALLS if calls else _PROGRAMS) + _TAIL],
        stdin=json.dumps(spec).encode(),
        timeout_s=all_s,
        max_output=sandbox.limits.output_bytes + _ROOM * len(json.dumps(expected)),
    )
    results = _parse_sandbox_results(done.stdout) if done.ok and not done.stdout_truncated else []
    if len(results) != len(tests):
        return 0.0
    pairs = zip(results, tests, strict=True)
    return sum(_is_test_passed(result, test) for result, test in pairs) / len(tests)


def _parse_sandbox_results(data: bytes) -> list[object]:
    """What the sandbox says of each test; nothing where it says nothing that can be read."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return []
    return cast("list[object]", value) if isinstance(value, list) else []


def _is_test_passed(result: object, test: Mapping[str, Any]) -> bool:
    match result:
        case [str(text)]:
            found, wanted = _KINDS[_sort_keys_of_test(test)]
            return found(text, test[wanted])
        case _:
            return False


_KINDS: Final[Mapping[tuple[str, ...], tuple[Callable[[object, Any], bool], str]]] = {
    ("args", "expected"): (same_printed_json, "expected"),
    ("stdin", "stdout"): (same_lines, "stdout"),
    ("json", "stdin"): (same_printed_json, "json"),
}
"""By the keys of a test: how what came out is compared, and with what."""
