"""The decoys of a public instance: searched for with its reference on first use, then kept.

whole repository -> our tests -> the reference repair -> suite, as it is and rewritten -> decoys
"""

import asyncio
import contextlib
import fcntl
import itertools
import posixpath
import random
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from pydantic import ValidationError

from agentrl.config import Config
from agentrl.envs.swe.build.archive import cache_folder
from agentrl.envs.swe.build.data_files import MOST_BYTES, MOST_FILES, is_data
from agentrl.envs.swe.build.decoying import Search, Validated, deciding, search
from agentrl.envs.swe.decoys import Decoy, is_guarded, rewrite_files
from agentrl.envs.swe.grade import Grading, put_tests, run_tests
from agentrl.envs.swe.ids import digest_of, keep
from agentrl.envs.swe.repair import PublicRepair, trees_of
from agentrl.envs.swe.report import BadReport, Saw, SuiteReport, by_file, file_of
from agentrl.envs.swe.worktree import fill
from agentrl.sandboxes import Sandbox

_WAIT_S: Final = 0.1
_VERSION: Final = 9
"""Of the search: what another one has found is searched for again."""
_MOST_TOLD: Final = 64 << 20


class Guard(Config):
    """What was found for an instance; all of it empty where nothing guards it."""

    rewritten: tuple[str, ...] = ()
    names: Mapping[str, str] = {}
    decoys: tuple[Decoy, ...] = ()
    deciding: tuple[int, ...] = ()

    def of(self, grading: Grading) -> Grading:
        """The grading with its decoys."""
        if not self.deciding:
            return grading
        return replace(
            grading,
            rewritten=self.rewritten,
            names=self.names,
            bugs=(tuple(self.decoys[i] for i in self.deciding),),
            others=self.decoys,
        )


async def find_guard(sandbox: Sandbox, repair: PublicRepair, grading: Grading) -> Guard:
    """The guard of an instance; the sandbox is as new afterwards.

    Raises:
        SandboxError: The sandbox failed.
        VerifierError: The instance's own tests cannot be put in place.
    """
    digest = digest_of(repair)
    kept = cache_folder() / "guards" / f"{digest}-{_VERSION}.json"
    async with _hold_search_lock(kept):
        if kept.exists():
            try:
                return Guard.model_validate_json(kept.read_bytes())
            except ValidationError:
                kept.unlink(missing_ok=True)
        guard = Guard()
        if repair.patch()[0]:
            guard = await _Search(sandbox, repair, grading, random.Random(digest)).run()
            await sandbox.reset()
        keep(kept, guard.model_dump_json())
        return guard


@contextlib.asynccontextmanager
async def _hold_search_lock(kept: Path) -> AsyncGenerator[None]:
    """One search at a time: the episodes of a group begin together, in one process or in many."""
    kept.parent.mkdir(exist_ok=True)
    with kept.with_suffix(".lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_WAIT_S)
        yield


class _Search:
    def __init__(
        self, sandbox: Sandbox, repair: PublicRepair, grading: Grading, rng: random.Random
    ) -> None:
        self._sandbox, self._repair, self._grading = sandbox, repair, grading
        self._rng = rng
        self._expected = frozenset((*grading.fail_to_pass, *grading.pass_to_pass))

    async def run(self) -> Guard:
        """Search with the reference, and once without it for where the tests fail."""
        # Tests are known here with their files, whatever the instance calls them.
        command = replace(self._grading.command, names="full")
        grading = replace(self._grading, command=command)
        plain = await self._run_reset_suite(grading)
        if plain is None:
            return Guard()
        texts = await self._read_texts(sorted({file_of(t) for t in plain.passed() if "::" in t}))
        called = self._map_run_tests_to_expected_names(plain, texts.values())
        both = plain.passed() & called.keys()
        passed = frozenset(test for test in both if called[test] in self._expected)
        named = {called[test] for test in passed}
        # What is left has a name that no rewritten file gives it.
        left = {self._grading.name_of(t) for t in plain.passed()} & self._expected - named
        if left or not named.issuperset(self._grading.fail_to_pass):
            return Guard()
        full = replace(grading, rewritten=tuple(texts))
        rewritten = await self._run_reset_suite(full)
        if rewritten is None:
            return Guard()
        before, after = by_file(plain.outcomes), by_file(rewritten.outcomes)
        texts = {file: text for file, text in texts.items() if before.get(file) == after.get(file)}
        pairs = _pair_ids(plain, rewritten, texts.keys())
        names = {test: called[before] for test, before in pairs.items()}
        full = replace(grading, rewritten=tuple(texts))
        num_called = Counter(names.values())
        once = (test for test, name in names.items() if num_called[name] == 1)
        tests = frozenset(test for test in once if pairs[test] in passed)
        failing = await self._run_broken_suite(full, names)
        observed = [(file_of(test), saw) for test, saw in failing.items() if saw]
        read = {**texts, **await self._read_texts(await self._list_data_files(texts))}
        told = await self._read_agents_repository()
        old = await self._read_rewritable_files([*texts])
        asking = search(read, tests, observed, self._rng, told, old)
        found = await self._search_decoys(replace(grading, rewritten=tuple(read)), asking)
        numbers = deciding(found, failing, frozenset(failing))
        decoys = tuple(_rename_tests_of_decoy(one.decoy, names) for one in found)
        if not is_guarded([[decoys[i] for i in numbers]]):
            return Guard()
        files = tuple(sorted({*texts, *(decoy.file for decoy in decoys)}))
        return Guard(rewritten=files, names=names, decoys=decoys, deciding=numbers)

    def _map_run_tests_to_expected_names(
        self, plain: SuiteReport, texts: Collection[str]
    ) -> dict[str, str]:
        """What the instance calls the tests that it expects: some by their docstrings' first lines.

        A log has such a line behind the test's name; here it counts if it can be no other test's.
        """
        name_of, told = self._grading.name_of, "\n".join(texts)
        num_of = Counter(test.rpartition("::")[2] for test in plain.outcomes)
        found = {test: name_of(test) for test in plain.outcomes if "::" in test}
        for test, said in itertools.pairwise(plain.outcomes):
            is_alone = told.count(said) == num_of[test.rpartition("::")[2]] == 1
            if "::" in test and "::" not in said and said in self._expected and is_alone:
                found[test] = said
        return found

    async def _search_decoys(self, grading: Grading, asking: Search) -> list[Validated]:
        try:
            decoys = next(asking)
            while True:
                decoys = asking.send(await self._run_reset_suite(grading, decoys))
        except StopIteration as stop:
            return cast("list[Validated]", stop.value)

    async def _run_broken_suite(
        self, grading: Grading, names: Mapping[str, str]
    ) -> dict[str, Saw | None]:
        """The tests that fail without the reference, by their ids in rewritten files."""
        report = await self._run_reset_suite(grading, mended=False)
        if report is None:
            return {}
        expected = {test for test, name in names.items() if name in grading.fail_to_pass}
        return {test: report.saws.get(test) for test in expected - report.passed()}

    async def _read_texts(self, files: Sequence[str]) -> dict[str, str]:
        await self._reset_to_whole_tree()
        await put_tests(self._sandbox, self._grading)
        return await self._read_rewritable_files(files)

    async def _read_rewritable_files(self, files: Sequence[str]) -> dict[str, str]:
        """Those that the sandbox has and that can be read."""
        paths = {posixpath.join(self._grading.root, file): file for file in files}
        found = await self._sandbox.read_files(paths.keys())
        texts: dict[str, str] = {}
        for path, data in found.items():
            with contextlib.suppress(ValueError, SyntaxError, RecursionError):
                rewrite_files(text := {paths[path]: data.decode()}, [])
                texts.update(text)
        return texts

    async def _list_data_files(self, tests: Collection[str]) -> Sequence[str]:
        """The files that tests may read, in their folders; the sandbox has the instance's tests."""
        done = await self._sandbox.exec(
            ["find", ".", "-type", "f", "-size", f"-{MOST_BYTES}c", "-print0"],
            cwd=self._grading.root,
        )
        names = done.stdout.decode(errors="replace").replace("\0./", "\0")[2:].split("\0")
        return sorted(name for name in names if is_data(name, [*tests]))[:MOST_FILES]

    async def _read_agents_repository(self) -> str:
        """What stands in the repository as the agent finds it, in older tests too."""
        await self._sandbox.reset()
        await fill(self._sandbox, trees_of(self._repair).agent, commit=False)
        done = await self._sandbox.exec(
            ["find", ".", "-type", "f", "-exec", "cat", "{}", "+"],
            cwd=self._grading.root,
            max_output=_MOST_TOLD,
        )
        return done.stdout.decode(errors="replace")

    async def _run_reset_suite(
        self, grading: Grading, decoys: Sequence[Decoy] = (), *, mended: bool = True
    ) -> SuiteReport | None:
        await self._reset_to_whole_tree()
        patch, is_bug = self._repair.patch() if mended else ("", False)
        try:
            return await run_tests(self._sandbox, grading, patch, decoys, reverse=is_bug)
        except BadReport:
            return None

    async def _reset_to_whole_tree(self) -> None:
        await self._sandbox.reset()
        await fill(self._sandbox, trees_of(self._repair).whole, commit=False)


def _pair_ids(plain: SuiteReport, rewritten: SuiteReport, files: Collection[str]) -> dict[str, str]:
    """What tests are called in the files as they are, by their ids in rewritten ones."""
    found: dict[str, str] = {}
    for file in files:
        pair = [[t for t in r.outcomes if file_of(t) == file] for r in (rewritten, plain)]
        found.update(zip(*pair, strict=True))
    return found


def _rename_tests_of_decoy(decoy: Decoy, names: Mapping[str, str]) -> Decoy:
    sees = {names[test]: value for test, value in decoy.sees.items()}
    spoils = tuple(names[test] for test in decoy.spoils)
    return decoy.model_copy(update={"sees": sees, "spoils": spoils})
