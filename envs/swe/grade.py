"""Grading: a fresh sandbox, the patch and nothing else of the agent, every expected test passed.

    our tests and twins -> patch, without what is sealed -> git apply -> run with a key -> verdict

What the patch causes is scored: it does not apply, the tests hang, the report is forged. What the
world causes raises, and the episode is Invalid; so nothing that may raise comes after the patch.
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
from agentrl.envs.swe.seal import Seal, kinds_of, without_sealed
from agentrl.envs.swe.twins import Twins, by_file, make_twins
from agentrl.errors import VerifierError
from agentrl.sandboxes import ExecResult, Sandbox

_RUNNER_PLACE: Final = "/tmp/agentrl_runner.py"
OPTIONS: Final = ("-o", "addopts=", "-p", "no:cacheprovider", "-q", "--tb=no")
_ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
_NO_PATH: Final = {"PYTHONPATH": ""}
"""Nothing of the repository stands before the standard library."""
_MOST_OUTPUT: Final = 16 << 20
_MOST_NAMES: Final = 10
_MOST_SAID: Final = 300
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
    seal: Seal = field(default_factory=Seal)
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
        seal=Seal(
            [*package.tests, *(a for a in package.arguments if a.endswith(".py"))],
            [mutation.file for mutation in task.mutations],
        ),
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
    brought = touched(instance.test_patch) | frozenset(instance.test_files)
    tests = (*instance.fail_to_pass, *instance.pass_to_pass)
    sources = touched(instance.patch) - brought
    # R2E's command names its folder.
    arguments = () if instance.test_files else targets(command, tests, sorted(brought))
    return Grading(
        root=root,
        fail_to_pass=instance.fail_to_pass,
        pass_to_pass=instance.pass_to_pass,
        command=command,
        arguments=arguments,
        paths=paths,
        # What the reference repairs may hold tests too, as doctests.
        seal=Seal(brought | (by_file(tests).keys() - sources), sources),
        test_patch=instance.test_patch,
        test_files=instance.test_files,
    )


async def grade(sandbox: Sandbox, grading: Grading, patch: str) -> Verdict:
    """Judge a patch in a fresh sandbox.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: Our own tests cannot be put in place, or do not begin.
    """
    kept, left_out = without_sealed(patch, grading.seal)
    note = f"; left out of the patch: {_listed(left_out)}" if left_out else ""
    if not kept.strip():
        return Verdict(resolved=False, reason=f"the patch changes nothing that counts{note}")
    watched = await _kinds(sandbox, grading.root, kept)
    await put_tests(sandbox, grading)
    twins = await _put_twins(sandbox, grading)
    command = await _put_command(sandbox, grading)
    said = await apply_patch(sandbox, grading.root, kept)
    if said:
        return Verdict(resolved=False, reason=f"the patch does not apply: {said}{note}")
    key = secrets.token_bytes(32)
    reports = grading.command.reads == "report"
    done = await sandbox.exec(
        command,
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


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_NAMES} more"] * (len(names) > _MOST_NAMES)
    return ", ".join([*names[:_MOST_NAMES], *more])


async def _kinds(sandbox: Sandbox, root: str, patch: str) -> Mapping[str, Sequence[str]]:
    """The files of a patch, each with the kinds of things that it did before."""
    found = dict.fromkeys((posixpath.join(root, name) for name in touched(patch)), ())
    before = await sandbox.read_files(found.keys())
    return {path: kinds_of(before.get(path, b"").decode(errors="replace")) for path in found}


async def apply_patch(sandbox: Sandbox, root: str, patch: str, *, reverse: bool = False) -> str:
    """What git said against a patch; "" if it applies.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: There is no git in it.
    """
    done = await sandbox.exec(
        ["git", "apply", "--whitespace=nowarn", *["--reverse"] * reverse, "-"],
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
    return lines[0][:_MOST_SAID] if lines else done.status


async def put_tests(sandbox: Sandbox, grading: Grading) -> None:
    """Put the tests that an instance brings into its repository.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: They do not fit.
    """
    if grading.test_patch:
        said = await apply_patch(sandbox, grading.root, grading.test_patch)
        if said:
            raise VerifierError(f"the instance's own test patch does not apply: {said}")
    await _write_texts(sandbox, grading, grading.test_files)


async def _put_twins(sandbox: Sandbox, grading: Grading) -> Twins:
    """Read the failing tests, and put their twins beside them."""
    texts: Mapping[str, str] = {}
    if grading.command.reads == "report":
        files = {posixpath.join(grading.root, f): f for f in by_file(grading.fail_to_pass)}
        found = await sandbox.read_files(files.keys())
        texts = {files[path]: data.decode(errors="replace") for path, data in found.items()}
    twins = make_twins(texts, grading.fail_to_pass, secrets.token_hex(4))
    await _write_texts(sandbox, grading, twins.files)
    return twins


async def _write_texts(sandbox: Sandbox, grading: Grading, texts: Mapping[str, str]) -> None:
    files = {posixpath.join(grading.root, name): text.encode() for name, text in texts.items()}
    await sandbox.write_files(files)


async def _put_command(sandbox: Sandbox, grading: Grading) -> Sequence[str]:
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
        arguments=[*OPTIONS, *halves[0], *halves[1]],
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
