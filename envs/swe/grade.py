"""Grading: a fresh sandbox, the patch and nothing else of the agent, every expected test passed.

    patch, without what is sealed -> git apply -> our tests and twins -> run with a key -> verdict

What the patch causes is scored: it does not apply, the tests hang, the report is forged. What the
world causes raises, and the episode is Invalid.
"""

import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from agentrl.envs.swe.build.records import Package, RepairTask
from agentrl.envs.swe.commands import TestCommand, targets
from agentrl.envs.swe.instances import Instance, tail
from agentrl.envs.swe.logs import PARSERS
from agentrl.envs.swe.patch import touched
from agentrl.envs.swe.report import (
    PYTHON_FLAGS,
    RUNNER,
    BadReport,
    Outcome,
    Request,
    Verdict,
    judge,
    read_report,
)
from agentrl.envs.swe.seal import kinds_of, without_sealed
from agentrl.envs.swe.twins import Twins, by_file, make_twins
from agentrl.errors import ToolError, VerifierError

_RUNNER_PLACE: Final = "/tmp/agentrl_runner.py"
_OPTIONS: Final = ("-o", "addopts=", "-p", "no:cacheprovider", "-q", "--tb=no")
_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
_MOST_OUTPUT: Final = 16 << 20
_APPLY_TIMEOUT_S: Final = 60.0


class Finished(Protocol):
    """What came of a command; `sandboxes.ExecResult` is one."""

    @property
    def status(self) -> str:
        """exited, timeout, oom or signalled."""
        ...

    @property
    def exit_code(self) -> int | None:
        """None after a timeout."""
        ...

    @property
    def stdout(self) -> bytes:
        """Its output."""
        ...

    @property
    def stderr(self) -> bytes:
        """Its messages."""
        ...


class Box(Protocol):
    """A fresh sandbox with the repository in it; every `sandboxes.Sandbox` is one."""

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_output: int | None = None,
        kill_leftovers: bool = False,
    ) -> Finished:
        """Run a command."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file."""
        ...

    async def read_file(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Read a file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """What decides about a patch."""

    root: str
    """The repository, in the sandbox."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    command: TestCommand
    arguments: tuple[str, ...]
    """Test files and options, behind the command."""
    paths: tuple[str, ...] = ()
    """Import path of the tests, in the sandbox, behind the standard library."""
    sealed: frozenset[str] = frozenset()
    test_patch: str = ""
    test_files: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 300.0


def of_task(task: RepairTask, package: Package, *, root: str, tools: str) -> Grading:
    """The grading of a built task.

    Args:
        task: the task.
        package: its package.
        root: the package with the task's bugs and with its tests, in the sandbox.
        tools: what `install_tools` made, in the sandbox.
    """
    return Grading(
        root=root,
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass(package),
        command=TestCommand(argv=("python3", *PYTHON_FLAGS)),
        arguments=package.arguments,
        paths=(tools, *(posixpath.normpath(f"{root}/{path}") for path in package.paths)),
        timeout_s=30 + 20 * package.seconds,
    )


def of_instance(instance: Instance, *, root: str) -> Grading:
    """The grading of a public instance, in its own image."""
    files = sorted(instance.sealed_files())
    tests = (*instance.fail_to_pass, *instance.pass_to_pass)
    # R2E's command names its folder.
    arguments = () if instance.test_files else targets(instance.command, tests, files)
    return Grading(
        root=root,
        fail_to_pass=instance.fail_to_pass,
        pass_to_pass=instance.pass_to_pass,
        command=instance.command,
        arguments=arguments,
        sealed=frozenset(files),
        test_patch=instance.test_patch,
        test_files=instance.test_files,
    )


async def grade(box: Box, grading: Grading, patch: str) -> Verdict:
    """Judge a patch in a fresh sandbox.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: Our own tests cannot be put in place.
    """
    kept, left_out = without_sealed(patch, grading.sealed)
    note = f"; left out of the patch: {', '.join(left_out)}" if left_out else ""
    if not kept.strip():
        return Verdict(resolved=False, reason=f"the patch changes nothing that counts{note}")
    watched = await _kinds(box, grading.root, kept)
    said = await _apply(box, grading.root, kept)
    if said:
        return Verdict(resolved=False, reason=f"the patch does not apply: {said}{note}")
    await _put_tests(box, grading)
    twins = await _put_twins(box, grading)
    key = secrets.token_bytes(32)
    done = await box.exec(
        await _command(box, grading),
        cwd=grading.root,
        env=_ENVIRONMENT,
        stdin=_request(grading, twins, watched).to_bytes(key)
        if grading.command.reads == "report"
        else b"",
        timeout_s=grading.timeout_s,
        max_output=_MOST_OUTPUT,
        kill_leftovers=True,
    )
    if done.status != "exited":
        return Verdict(resolved=False, reason=f"the tests ended by {done.status}{note}")
    try:
        outcomes = _outcomes(grading.command, done, key)
    except BadReport as error:
        return Verdict(resolved=False, reason=f"{error}{note}")
    if twins.passed(outcomes):
        reason = f"tests that have to fail pass too, so the others prove nothing{note}"
        return Verdict(resolved=False, reason=reason)
    verdict = judge(outcomes, grading.fail_to_pass, grading.pass_to_pass)
    return Verdict(
        resolved=verdict.resolved,
        reason=verdict.reason + note,
        fail_to_pass=verdict.fail_to_pass,
        pass_to_pass=verdict.pass_to_pass,
    )


def _expected(grading: Grading) -> Sequence[str]:
    return (*grading.fail_to_pass, *grading.pass_to_pass)


async def _kinds(box: Box, root: str, patch: str) -> Mapping[str, Sequence[str]]:
    """The files of a patch, each with the kinds of things that it did before."""
    found: dict[str, Sequence[str]] = {}
    for name in touched(patch):
        path = posixpath.join(root, name)
        try:
            found[path] = kinds_of((await box.read_file(path)).decode(errors="replace"))
        except ToolError:
            found[path] = ()  # a new file
    return found


async def _apply(box: Box, root: str, patch: str) -> str:
    """What git said against a patch; "" if it applies."""
    done = await box.exec(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=root,
        env={"GIT_CEILING_DIRECTORIES": posixpath.dirname(root)},
        stdin=patch.encode(),
        timeout_s=_APPLY_TIMEOUT_S,
    )
    if done.status == "exited" and done.exit_code in (126, 127):
        raise VerifierError("there is no git in the sandbox; grading needs one to apply patches")
    if done.status == "exited" and done.exit_code == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else done.status


async def _put_tests(box: Box, grading: Grading) -> None:
    if grading.test_patch:
        said = await _apply(box, grading.root, grading.test_patch)
        if said:
            raise VerifierError(f"the instance's own test patch does not apply: {said}")
    for name, text in grading.test_files.items():
        await box.write_file(posixpath.join(grading.root, name), text.encode())


async def _put_twins(box: Box, grading: Grading) -> Twins:
    """Read the failing tests before anything of the patch runs, and put their twins beside them."""
    texts: dict[str, str] = {}
    if grading.command.reads == "report":
        for file in by_file(grading.fail_to_pass):
            data = await box.read_file(posixpath.join(grading.root, file))
            texts[file] = data.decode(errors="replace")
    twins = make_twins(texts, grading.fail_to_pass, secrets.token_hex(4))
    for file, text in twins.files.items():
        await box.write_file(posixpath.join(grading.root, file), text.encode())
    return twins


async def _command(box: Box, grading: Grading) -> Sequence[str]:
    if grading.command.reads != "report":
        return [*grading.command.argv, *grading.arguments]
    await box.write_file(_RUNNER_PLACE, RUNNER.read_bytes())
    return [*grading.command.argv, _RUNNER_PLACE]


def _request(grading: Grading, twins: Twins, watched: Mapping[str, Sequence[str]]) -> Request:
    # First or last: where they stand does not show which ones they are.
    halves = [grading.arguments, twins.tests]
    if secrets.randbelow(2):
        halves.reverse()
    return Request(
        root=grading.root,
        paths=grading.paths,
        arguments=[*_OPTIONS, *halves[0], *halves[1]],
        watched=watched,
        sealed=[posixpath.join(grading.root, file) for file in by_file(_expected(grading))],
    )


def _outcomes(command: TestCommand, done: Finished, key: bytes) -> Mapping[str, Outcome]:
    if command.reads == "report":
        found: Mapping[str, Outcome] = read_report(done.stdout, key).outcomes
    else:
        log = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
        found = PARSERS[command.reads](log)
    if command.names == "full":
        return found
    short: dict[str, Outcome] = {}
    for test, outcome in found.items():  # two tests with one name: both have to pass
        if short.get(tail(test), "passed") == "passed":
            short[tail(test)] = outcome
    return short
