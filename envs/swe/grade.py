"""Grading: a fresh sandbox, the patch and nothing else of the agent, every expected test passed.

    patch, without what is sealed -> git apply -> our tests and twins -> run with a key -> verdict

What the patch causes is scored: it does not apply, the tests hang, the report is forged. What the
world causes raises, and the episode is Invalid.
"""

import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

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
from agentrl.errors import VerifierError
from agentrl.sandboxes import ExecResult, FileAccessError, Sandbox

_RUNNER_PLACE: Final = "/tmp/agentrl_runner.py"
_OPTIONS: Final = ("-o", "addopts=", "-p", "no:cacheprovider", "-q", "--tb=no")
_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
_NO_PATH: Final = {"PYTHONPATH": ""}
"""Nothing of the repository stands before the standard library."""
_MOST_OUTPUT: Final = 16 << 20
_APPLY_TIMEOUT_S: Final = 60.0


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


def of_instance(instance: Instance, *, root: str, tools: str = "") -> Grading:
    """The grading of a public instance.

    Args:
        instance: the instance.
        root: its repository, in the sandbox.
        tools: what `install_tools` made, in the sandbox; "": it is in its own image.
    """
    command = instance.command
    paths: tuple[str, ...] = (f"{root}/src", root)
    if tools and command.reads == "report":
        command, paths = replace(command, argv=("python3", *PYTHON_FLAGS)), (tools, *paths)
    elif tools and command.argv[0] == "python":
        command = replace(command, argv=("python3", *command.argv[1:]))
    files = sorted(instance.sealed_files())
    tests = (*instance.fail_to_pass, *instance.pass_to_pass)
    # R2E's command names its folder.
    arguments = () if instance.test_files else targets(command, tests, files)
    return Grading(
        root=root,
        fail_to_pass=instance.fail_to_pass,
        pass_to_pass=instance.pass_to_pass,
        command=command,
        arguments=arguments,
        paths=paths,
        sealed=frozenset(files),
        test_patch=instance.test_patch,
        test_files=instance.test_files,
    )


async def grade(sandbox: Sandbox, grading: Grading, patch: str) -> Verdict:
    """Judge a patch in a fresh sandbox.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: Our own tests cannot be put in place, or do not begin.
    """
    kept, left_out = without_sealed(patch, grading.sealed)
    note = f"; left out of the patch: {', '.join(left_out)}" if left_out else ""
    if not kept.strip():
        return Verdict(resolved=False, reason=f"the patch changes nothing that counts{note}")
    watched = await _kinds(sandbox, grading.root, kept)
    said = await _apply(sandbox, grading.root, kept)
    if said:
        return Verdict(resolved=False, reason=f"the patch does not apply: {said}{note}")
    await _put_tests(sandbox, grading)
    twins = await _put_twins(sandbox, grading)
    key = secrets.token_bytes(32)
    reports = grading.command.reads == "report"
    done = await sandbox.exec(
        await _command(sandbox, grading),
        cwd=grading.root,
        env={**_ENVIRONMENT, **_NO_PATH} if reports else _ENVIRONMENT,
        stdin=_request(grading, twins, watched).to_bytes(key) if reports else b"",
        timeout_s=grading.timeout_s,
        max_output=_MOST_OUTPUT,
        kill_leftovers=True,
    )
    if done.status != "exited":
        return Verdict(resolved=False, reason=f"the tests ended by {done.status}{note}")
    if reports and not done.stdout:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise VerifierError(
            f"the runner of the tests did not begin in the sandbox ({lines[-1]}); it needs a "
            "Python of at least 3.7, and in an image pytest"
        )
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


async def _kinds(sandbox: Sandbox, root: str, patch: str) -> Mapping[str, Sequence[str]]:
    """The files of a patch, each with the kinds of things that it did before."""
    found: dict[str, Sequence[str]] = {}
    for name in touched(patch):
        path = posixpath.join(root, name)
        try:
            found[path] = kinds_of((await sandbox.read_file(path)).decode(errors="replace"))
        except FileAccessError:
            found[path] = ()  # a new file
    return found


async def _apply(sandbox: Sandbox, root: str, patch: str) -> str:
    """What git said against a patch; "" if it applies."""
    done = await sandbox.exec(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=root,
        env={"GIT_CEILING_DIRECTORIES": posixpath.dirname(root)},
        stdin=patch.encode(errors="surrogateescape"),
        timeout_s=_APPLY_TIMEOUT_S,
    )
    if done.status == "exited" and done.exit_code in (126, 127):
        raise VerifierError("there is no git in the sandbox; grading needs one to apply patches")
    if done.status == "exited" and done.exit_code == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else done.status


async def _put_tests(sandbox: Sandbox, grading: Grading) -> None:
    if grading.test_patch:
        said = await _apply(sandbox, grading.root, grading.test_patch)
        if said:
            raise VerifierError(f"the instance's own test patch does not apply: {said}")
    for name, text in grading.test_files.items():
        await sandbox.write_file(posixpath.join(grading.root, name), text.encode())


async def _put_twins(sandbox: Sandbox, grading: Grading) -> Twins:
    """Read the failing tests before anything of the patch runs, and put their twins beside them."""
    texts: dict[str, str] = {}
    if grading.command.reads == "report":
        for file in by_file(grading.fail_to_pass):
            data = await sandbox.read_file(posixpath.join(grading.root, file))
            texts[file] = data.decode(errors="replace")
    twins = make_twins(texts, grading.fail_to_pass, secrets.token_hex(4))
    for file, text in twins.files.items():
        await sandbox.write_file(posixpath.join(grading.root, file), text.encode())
    return twins


async def _command(sandbox: Sandbox, grading: Grading) -> Sequence[str]:
    if grading.command.reads != "report":
        return [*grading.command.argv, *grading.arguments]
    await sandbox.write_file(_RUNNER_PLACE, RUNNER.read_bytes())
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


def _outcomes(command: TestCommand, done: ExecResult, key: bytes) -> Mapping[str, Outcome]:
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
