"""Grading: the patch and nothing else of the agent, in several sandboxes as new, with decoys.

    patch, without what is sealed -> draw runs -> verdict
    └─ each: a fresh sandbox -> our tests, some of them decoys -> git apply -> run with a key

Only a patch that passes what is real pays for all runs.

What the patch causes is scored: it does not apply, the tests hang, the report is forged. What the
world causes raises, and the episode is Invalid; so nothing that may raise comes after the patch.
"""

import posixpath
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agentrl.envs.swe.build.records import Package, RepairTask
from agentrl.envs.swe.commands import TestCommand, module_of, targets
from agentrl.envs.swe.decoys import Decoy, draw_runs, is_guarded, rewrite_files
from agentrl.envs.swe.instances import Instance, tail
from agentrl.envs.swe.logs import PARSERS, read_saws, unittest_name
from agentrl.envs.swe.patch import touched
from agentrl.envs.swe.report import (
    PYTHON_FLAGS,
    RUNNER,
    RUNNER_PLACE,
    BadReport,
    Outcome,
    SuiteReport,
    SuiteRequest,
    file_of,
    read_report,
)
from agentrl.envs.swe.seal import Seal, without_sealed
from agentrl.envs.swe.verdict import Judged, Verdict, is_decided, judge_run, verdict_of
from agentrl.errors import VerifierError
from agentrl.sandboxes import ExecResult, Sandbox

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
    all_s: float = 1800.0
    """Of all runs together: below what `score` may take, since the code under test uses it up."""
    rewritten: tuple[str, ...] = ()
    """Test files that run as `rewriting.py` makes them, and what they read that has decoys."""
    bugs: tuple[tuple[Decoy, ...], ...] = ()
    """The decoys that decide about each bug; empty: nothing guards the task."""
    others: tuple[Decoy, ...] = ()
    """Decoys of tests that have to go on passing."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the instance calls a test, by its id in a rewritten file."""
    modules: Mapping[str, str] = field(default_factory=dict[str, str])
    """Test files, by the names that the log of a command for modules has for them."""

    @property
    def guarded(self) -> bool:
        """True if there are decoys enough for each bug."""
        return is_guarded(self.bugs)

    @property
    def by_log(self) -> bool:
        """True if the command is not ours."""
        return self.command.reads != "report"

    def name_of(self, test: str) -> str:
        """What the instance calls a test of a run."""
        return self.names.get(test) or (tail(test) if self.command.names == "tail" else test)

    def id_of(self, test: str) -> str:
        """A test with its file, of its name in a log."""
        name = unittest_name(test) if self.modules else test
        for module, file in self.modules.items():
            if name.startswith(f"{module}."):
                return "::".join([file, *name[len(module) + 1 :].split(".")])
        return name


def of_task(task: RepairTask, package: Package, *, root: str, tools: str) -> Grading:
    """The grading of a built task.

    Args:
        task: the task.
        package: its package.
        root: the package with the task's bugs and with its tests, in the sandbox.
        tools: what `install_tools` made, in the sandbox.
    """
    files = {*package.tests, *(decoy.file for decoy in package.decoys)}
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
        rewritten=tuple(sorted(files.difference(package.as_they_are))),
        bugs=tuple(tuple(package.decoys[i] for i in bug) for bug in task.deciding),
        others=package.decoys,
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
    by_module = command.targets == "modules"
    grading = Grading(
        root=root,
        fail_to_pass=instance.fail_to_pass,
        pass_to_pass=instance.pass_to_pass,
        command=command,
        modules={module_of(file): file for file in brought} if by_module else {},
        arguments=arguments,
        paths=paths,
        # What the reference repairs may hold tests too, as doctests.
        seal=Seal(brought | ({file_of(test) for test in tests if "::" in test} - sources), sources),
        test_patch=instance.test_patch,
        test_files=instance.test_files,
    )
    return replace(
        grading,
        fail_to_pass=tuple(map(grading.id_of, grading.fail_to_pass)),
        pass_to_pass=tuple(map(grading.id_of, grading.pass_to_pass)),
    )


async def grade(
    sandbox: Sandbox, grading: Grading, patch: str, fresh: Callable[[], Awaitable[None]]
) -> Verdict:
    """Judge a patch.

    Args:
        sandbox: where.
        grading: what decides.
        patch: of the agent.
        fresh: makes the sandbox as new, with the repository and its bugs in it.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: Our own tests cannot be put in place, or do not begin.
    """
    kept, left_out = without_sealed(patch, grading.seal)
    more = [f"and {len(left_out) - _MOST_NAMES} more"] * (len(left_out) > _MOST_NAMES)
    names = ", ".join([*left_out[:_MOST_NAMES], *more])
    note = f"; left out of the patch: {names}" if left_out else ""
    if not kept.strip():
        return Verdict(resolved=False, reason=f"the patch changes nothing that counts{note}")
    runs: list[list[Decoy]] = [[]]
    if grading.guarded:
        runs = draw_runs(grading.bugs, grading.others, random.SystemRandom())
    tests = (*grading.fail_to_pass, *grading.pass_to_pass)
    judged: list[Judged] = []
    left = grading.all_s
    for decoys in runs:
        await fresh()
        began = time.monotonic()
        within = replace(grading, timeout_s=min(grading.timeout_s, left))
        try:
            report = await run_tests(sandbox, within, kept, decoys)
            left -= time.monotonic() - began
            if left <= 0:
                raise BadReport(f"the runs of the tests took {grading.all_s:g} s together")
        except BadReport as error:
            return Verdict(resolved=False, reason=f"{error}{note}", guarded=grading.guarded)
        judged.append(judge_run(report.outcomes, report.saws, decoys, tests))
        if judged[-1].wrong or is_decided(judged):
            break
    verdict = verdict_of(
        judged, grading.fail_to_pass, grading.pass_to_pass, guarded=grading.guarded
    )
    return replace(verdict, reason=verdict.reason + note)


async def run_tests(
    sandbox: Sandbox,
    grading: Grading,
    patch: str,
    decoys: Sequence[Decoy] = (),
    *,
    reverse: bool = False,
) -> SuiteReport:
    """Run the tests once, in a sandbox with the repository and nothing else.

    Raises:
        BadReport: The patch does not apply, or the tests come to no end that proves anything.
        SandboxError: The sandbox failed.
        VerifierError: Our own tests cannot be put in place, or do not begin.
    """
    await put_tests(sandbox, grading, decoys)
    await sandbox.write_file(RUNNER_PLACE, RUNNER.read_bytes())
    said = await apply_patch(sandbox, grading.root, patch, reverse=reverse) if patch else ""
    if said:
        raise BadReport(f"the patch does not apply: {said}")
    key, argv = secrets.token_bytes(32), grading.command.argv
    arguments = [*OPTIONS, *grading.arguments]
    request = SuiteRequest(root=grading.root, paths=grading.paths, arguments=arguments)
    done = await sandbox.exec(
        [*argv, *grading.arguments] if grading.by_log else [*argv, RUNNER_PLACE],
        cwd=grading.root,
        env=_ENVIRONMENT if grading.by_log else {**_ENVIRONMENT, **_NO_PATH},
        stdin=b"" if grading.by_log else request.to_bytes(key),
        timeout_s=grading.timeout_s,
        max_output=_MOST_OUTPUT,
        kill_leftovers=True,
    )
    if done.status != "exited":
        raise BadReport(f"the tests ended by {done.status}")
    if not (grading.by_log or done.stdout):
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise VerifierError(
            f"the runner of the tests did not begin in the sandbox ({lines[-1]}); it needs a "
            "Python of at least 3.7, and in an image pytest"
        )
    return _rename_tests_as_instance_does(_parse_suite_report(grading, done, key), grading)


def _rename_tests_as_instance_does(report: SuiteReport, grading: Grading) -> SuiteReport:
    """With the names that the instance has for its tests; two with one name both have to pass."""
    outcomes: dict[str, Outcome] = {}
    for test, outcome in report.outcomes.items():
        if outcomes.get(grading.name_of(test), "passed") == "passed":
            outcomes[grading.name_of(test)] = outcome
    saws = {grading.name_of(test): saw for test, saw in report.saws.items()}
    return replace(report, outcomes=outcomes, saws=saws)


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


async def put_tests(sandbox: Sandbox, grading: Grading, decoys: Sequence[Decoy] = ()) -> None:
    """Put the tests that an instance brings into its repository; all that decide as a run has them.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: They do not fit.
    """
    if grading.test_patch:
        said = await apply_patch(sandbox, grading.root, grading.test_patch)
        if said:
            raise VerifierError(f"the instance's own test patch does not apply: {said}")
    await _write_sandbox_texts(sandbox, grading, grading.test_files)
    paths = {posixpath.join(grading.root, file): file for file in grading.rewritten}
    found = await sandbox.read_files(paths.keys()) if paths else {}
    texts = {paths[path]: data.decode(errors="replace") for path, data in found.items()}
    await _write_sandbox_texts(
        sandbox, grading, rewrite_files(texts, decoys, by_log=grading.by_log)
    )


async def _write_sandbox_texts(
    sandbox: Sandbox, grading: Grading, texts: Mapping[str, str]
) -> None:
    files = {posixpath.join(grading.root, name): text.encode() for name, text in texts.items()}
    if files:
        await sandbox.write_files(files)


def _parse_suite_report(grading: Grading, done: ExecResult, key: bytes) -> SuiteReport:
    if not grading.by_log:
        return read_report(done.stdout, key)
    log = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
    parsed = PARSERS[grading.command.reads](log)
    outcomes: dict[str, Outcome] = {grading.id_of(test): o for test, o in parsed.items()}
    saws = {grading.id_of(test): saw for test, saw in read_saws(log).items()}
    return SuiteReport(outcomes=outcomes, saws=saws, broken={}, status=done.exit_code or 0)
