"""A working copy of a package, in which bugs are planted and repaired one after the other."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agentrl.envs.swe.build.archive import Archive, install_tools, unpack
from agentrl.envs.swe.build.data_files import MOST_BYTES, MOST_FILES, is_data
from agentrl.envs.swe.build.layout import PackageLayout, layout
from agentrl.envs.swe.build.suite import Suite, SuiteRun, SuiteRunner
from agentrl.envs.swe.report import Outcome, by_file, function_of
from agentrl.envs.swe.rewriting import rewrite_tests
from agentrl.errors import ConfigError

RUNS: Final = 3
"""How often a suite runs to see whether it is steady."""
_TEST_FILE: Final = re.compile(r"(?:\A|/)(?:test[^/]*|[^/]*_tests?)\.py\Z")
_GIT_TIMEOUT_S: Final = 60.0
_SLOWER: Final = 5
"""A suite with a bug may take so many times as long as one without, and as many seconds."""
_times: Final = itertools.count(1_500_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The working copy and what is known of its suite."""

    runner: SuiteRunner
    archive: Archive
    root: Path
    pristine: Path
    layout: PackageLayout
    suite: Suite
    texts: Mapping[str, str]
    """The test files that run rewritten, as they are, and what they read."""
    as_they_are: tuple[str, ...]
    """The test files that do not, for their tests notice."""
    tests: tuple[str, ...]
    """Those that pass in each run."""
    seconds: float

    @contextmanager
    def changed(self, files: Mapping[str, str]) -> Generator[None]:
        """With other texts in some files, or new ones; afterwards all is as it was."""
        paths = {name: self.root / name for name in files}
        before = {name: path.read_bytes() for name, path in paths.items() if path.exists()}
        try:
            for name, text in files.items():
                write(paths[name], text.encode())
            yield
        finally:
            for name, path in paths.items():
                if name in before:
                    write(path, before[name])
                else:
                    path.unlink(missing_ok=True)

    def apply(self, patch: str) -> bool:
        """Apply a patch with git; True if it did."""
        done = subprocess.run(
            ["git", "apply", "-"],
            cwd=self.root,
            input=patch.encode(),
            env={"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(self.root.parent)},
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
        for name in self.layout.sources:
            _set_new_file_time(self.root / name)
        return done.returncode == 0


def write(path: Path, data: bytes) -> None:
    """Write a file with a time that it never had, so that no stale bytecode is taken for it."""
    path.write_bytes(data)
    _set_new_file_time(path)


def _set_new_file_time(path: Path) -> None:
    now = next(_times)
    os.utime(path, (now, now))


def set_up(
    archive: Archive,
    folder: Path,
    *,
    resources: ExitStack,
    requires: Sequence[str],
    arguments: Sequence[str],
) -> Bench:
    """Unpack a package and run its suite three times.

    Args:
        archive: what to unpack.
        folder: an empty folder for the working copy.
        resources: ends the process that runs the suites.
        requires: what its tests import, for pip.
        arguments: of pytest; empty: every test file.

    Raises:
        ConfigError: It has no tests, or they do not pass as they are.
    """
    pristine = unpack(archive)
    found = layout(pristine, archive.name)
    root = folder / "tree"
    shutil.copytree(pristine, root, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    suite = Suite(
        root=root,
        paths=found.paths,
        tools=install_tools(requires),
        arguments=tuple(arguments or filter(_TEST_FILE.search, found.tests)),
    )
    texts, as_they_are = _rewrite_test_files(archive.name, suite)
    # Each in a process of its own: what depends on the order of sets or on addresses is not steady.
    runs = [_run_suite_alone(suite, seed) for seed in range(RUNS)]
    runner = resources.enter_context(SuiteRunner(suite.tools))
    tests = steady([_require_passing_outcomes(archive.name, run) for run in runs])
    if not tests:
        raise ConfigError(f"{archive.name}: none of its tests passes in each of {RUNS} runs")
    seconds = sorted(run.seconds for run in runs)[RUNS // 2]
    return Bench(
        runner=runner,
        archive=archive,
        root=root,
        pristine=pristine,
        layout=found,
        suite=replace(suite, cpu_s=_SLOWER * (seconds + 1)),
        texts=texts,
        as_they_are=as_they_are,
        tests=tests,
        seconds=round(seconds, 2),
    )


def _rewrite_test_files(name: str, suite: Suite) -> tuple[dict[str, str], tuple[str, ...]]:
    """Rewrite the test files in place, except where a test comes to another end by it."""
    plain = by_file(_require_passing_outcomes(name, _run_suite_alone(suite, 0)))
    texts: dict[str, str] = {}
    for file in plain:
        try:
            text = (suite.root / file).read_text(encoding="utf-8")
            write(suite.root / file, rewrite_tests(text, {}).encode())
            texts[file] = text
        except (SyntaxError, ValueError, RecursionError):
            continue
    report = _run_suite_alone(suite, 0).report
    found = by_file(report.outcomes) if report else {}
    for file in [file for file in texts if found.get(file) != plain[file]]:
        write(suite.root / file, texts.pop(file).encode())
    return {**_read_data_files(suite.root, [*texts]), **texts}, tuple(
        sorted(plain.keys() - texts.keys())
    )


def _read_data_files(root: Path, tests: Sequence[str]) -> dict[str, str]:
    """What tests may read, in their folders."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if is_data(name, tests) and path.is_file() and path.stat().st_size < MOST_BYTES:
            with contextlib.suppress(ValueError):
                found[name] = path.read_bytes().decode()
    return dict(itertools.islice(found.items(), MOST_FILES))


def _run_suite_alone(suite: Suite, hash_seed: int) -> SuiteRun:
    with SuiteRunner(suite.tools, hash_seed=hash_seed) as runner:
        return runner.run(suite)


def steady(runs: Sequence[Mapping[str, Outcome]]) -> tuple[str, ...]:
    """The tests that pass in each run, without functions whose tests have other ids in each."""
    everywhere = frozenset[str](runs[0]).intersection(*runs[1:])
    changing = {function_of(test) for run in runs for test in run if test not in everywhere}
    return tuple(
        test
        for test in runs[0]
        if function_of(test) not in changing and all(run[test] == "passed" for run in runs)
    )


def _require_passing_outcomes(name: str, run: SuiteRun) -> Mapping[str, Outcome]:
    if run.report is None:
        raise ConfigError(f"{name}: its suite does not run to the end: {run.problem}")
    if run.report.broken:
        file, said = next(iter(run.report.broken.items()))
        raise ConfigError(
            f"{name}: {file} cannot be imported ({said}); name what the tests need with "
            "--requires, or the files to run with --tests"
        )
    bad = [test for test, o in run.report.outcomes.items() if o in ("failed", "error")]
    if bad:
        raise ConfigError(
            f"{name}: {len(bad)} of {len(run.report.outcomes)} tests fail without any change, "
            f"{bad[0]} first; leave them out with --tests, or choose another package"
        )
    return run.report.outcomes
