"""The naive verdict: every expected test passed, and its twin did not, in one run of the patch."""

import ast
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, cast

from agentrl.sandboxes import Sandbox
from tests.contract.sandbox.naive.twins import make_twins

_RUNNER: Final = "/tmp/agentrl_runner.py"
_OPTIONS: Final = ("-o", "addopts=", "-p", "no:cacheprovider", "-q", "--tb=no")
_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
_CLEAN: Final = """
find . -depth -regextype egrep \
    -regex '.*/(tests|conftest\\.py|setup\\.cfg|[^/]*\\.pth|[^/]*\\.ini|pyproject\\.toml)' \
    -exec rm -rf -- {} +
find . -type f -name '*.py'
"""
"""What a patch must not decide is no part of it; the files that may hold code are watched."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A package with a bug, and its tests."""

    files: Mapping[str, str]
    """As the agent finds them."""
    tests: Mapping[str, str]
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]


async def judge(sandbox: Sandbox, suite: Suite, script: str, *, timeout_s: float = 8) -> str:
    """Why the agent's script earns nothing; "" if it is worth 1."""
    for name, text in suite.files.items():
        await sandbox.write_file(name, text.encode())
    await sandbox.exec(script)
    await sandbox.kill_leftovers()
    listed = await sandbox.exec(["bash", "-c", _CLEAN])
    changed = listed.stdout.decode().split()
    twins = make_twins(suite.tests, suite.fail_to_pass, secrets.token_hex(4))
    for name, text in {**suite.tests, **twins.files}.items():
        await sandbox.write_file(name, text.encode())
    await sandbox.write_file(_RUNNER, (Path(__file__).parent / "runner.py").read_bytes())
    halves = [tuple(suite.tests), twins.tests]
    if secrets.randbelow(2):
        halves.reverse()
    key, root = secrets.token_bytes(32), PurePosixPath(sandbox.workspace)
    request = {
        "key": key.hex(), "root": f"{root}", "arguments": [*_OPTIONS, *halves[0], *halves[1]],
        "paths": [sandbox.mounts["tools"], f"{root / 'src'}", f"{root}"],
        "watched": {f"{root / name}": list[str]() for name in changed},
        "sealed": [f"{root / name}" for name in suite.tests],
    }  # fmt: skip
    done = await sandbox.exec(
        ["python3", "-s", "-P", "-S", _RUNNER], env=_ENVIRONMENT,
        stdin=json.dumps(request).encode() + b"\n", timeout_s=timeout_s,
    )  # fmt: skip
    if done.status != "exited":
        return f"the tests ended by {done.status}"
    outcomes = _read_outcomes(done.stdout, key)
    if isinstance(outcomes, str):
        return outcomes
    if twins.passed(outcomes):
        return "the twins pass too"
    wanted = (*suite.fail_to_pass, *suite.pass_to_pass)
    return ", ".join(test for test in wanted if outcomes.get(test) != "passed")


def _read_outcomes(data: bytes, key: bytes) -> dict[str, str] | str:
    """What the report says, or what is wrong with it."""
    outcomes: dict[str, str] = {}
    for number, line in enumerate(data.splitlines()):
        mac, _, text = line.partition(b" ")
        said = hashlib.blake2b(b"%d:%s" % (number, text), key=key, digest_size=16).hexdigest()
        if said != mac.decode():
            return "a line is not the runner's"
        event = cast("dict[str, object]", ast.literal_eval(text.decode()))
        if event["event"] == "tampered":
            return f"{event['id']} does what only a cheat does: {event['what']}"
        if event["event"] == "end":
            return outcomes if event["tests"] == len(outcomes) else "the end is wrong"
        if event["event"] == "test":
            outcomes[str(event["id"])] = str(event["outcome"])
    return "the run did not come to its end"
