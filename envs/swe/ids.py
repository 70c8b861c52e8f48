"""Whether the tests that an instance names can be collected: asked once, then kept in the cache.

whole repository -> our tests -> the reference repair -> pytest --collect-only
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agentrl.envs.swe.build.archive import cache_folder
from agentrl.envs.swe.grade import OPTIONS, Grading, apply_patch, put_tests
from agentrl.envs.swe.repair import PublicRepair, trees_of
from agentrl.envs.swe.worktree import fill
from agentrl.sandboxes import Sandbox

_TIMEOUT_S: Final = 300.0
# The path is as in `runner.py`. Nothing of a policy is in the sandbox, so no channel is guarded.
_COLLECT: Final = """
import json, os, sys
spec = json.loads(sys.stdin.buffer.readline())
out = os.dup(1)
os.dup2(2, 1)
os.chdir(spec["root"])
place = next((i for i, p in enumerate(sys.path) if "-packages" in p), len(sys.path))
if place < len(sys.path):
    __import__("pytest")
sys.path[place:place] = spec["paths"]
import pytest
names, broken = set(), set()
class Collector:
    def pytest_itemcollected(self, item):
        names.update([item.nodeid, ".".join(item.nodeid.split("::")[1:])])
    def pytest_collectreport(self, report):
        if report.failed:
            broken.add(report.nodeid.split("::")[0])
there = [a for a in spec["arguments"] if "/" not in a or os.path.exists(a)]
pytest.main(["--collect-only", "-q", *spec["options"], *there], plugins=[Collector()])
missing = [test for test in spec["tests"] if test not in names]
os.write(out, json.dumps({"missing": missing[:100], "broken": sorted(broken)}).encode())
os._exit(0)
"""


async def find_bad_ids(sandbox: Sandbox, repair: PublicRepair, grading: Grading) -> Sequence[str]:
    """Ids of an instance that its runner does not collect; none if that cannot be known.

    A file that cannot be imported is excused where there is no reference that could mend it. The
    sandbox has to be as new, and is again afterwards.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: The instance's own tests cannot be put in place.
    """
    if grading.command.reads not in ("report", "pytest"):
        return ()
    kept = cache_folder() / "ids" / f"{digest_of(repair)}.json"
    if kept.exists():
        found: list[str] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    await fill(sandbox, trees_of(repair).whole, commit=False)
    await put_tests(sandbox, grading)
    patch, is_bug = repair.patch()
    mended = bool(patch) and not await apply_patch(sandbox, grading.root, patch, reverse=is_bug)
    said = await _collect_test_ids(sandbox, grading)
    await sandbox.reset()
    if said is None:
        return ()
    excused = frozenset[str]() if mended else frozenset[str](said["broken"])
    full = grading.command.names == "full"
    bad = [t for t in said["missing"] if not excused or (full and t.split("::")[0] not in excused)]
    keep(kept, json.dumps(bad))
    return bad


async def _collect_test_ids(sandbox: Sandbox, grading: Grading) -> Mapping[str, Any] | None:
    """What the script says; None if it came to no end."""
    command, reports = grading.command, grading.command.reads == "report"
    # Behind `python -m pytest` stand its options.
    python, options = (command.argv, OPTIONS) if reports else (command.argv[:1], command.argv[3:])
    spec = {
        "root": grading.root,
        "paths": grading.paths if reports else [grading.root],
        "options": options,
        "arguments": grading.arguments,
        "tests": [*grading.fail_to_pass, *grading.pass_to_pass],
    }
    done = await sandbox.exec(
        [*python, "-c", _COLLECT],
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""} if reports else None,
        stdin=json.dumps(spec).encode() + b"\n",
        timeout_s=_TIMEOUT_S,
    )
    try:
        said: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return said


def digest_of(repair: PublicRepair) -> str:
    """Names all that the tests of an instance depend on."""
    instance, folder = repair.instance, repair.folder
    fixed = folder is None or (instance.commit and (folder / ".git").exists())
    state = b"" if fixed else trees_of(repair).whole.stdin
    # What it is called and what is told of it change nothing.
    bare = replace(repair, instance=replace(instance, id="", problem=""))
    return hashlib.blake2b(repr(bare).encode() + state, digest_size=16).hexdigest()


def keep(file: Path, text: str) -> None:
    """Write a file of the cache, at once."""
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_name(f"{file.name}-{id(text)}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
