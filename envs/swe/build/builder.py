"""From a package to validated repair tasks.

archive -> working copy -> suite three times -> candidates on lines that run
└─ plant one -> suite: some tests fail, all are reported -> what the tests see -> issue text
   └─ suite twice more: the same -> patch with git -> suite: all pass -> task
"""

import hashlib
import itertools
import math
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agentrl.envs.swe.build.archive import fetch
from agentrl.envs.swe.build.behaviour import Behaviour, Call, calls, differences, executed_lines
from agentrl.envs.swe.build.bench import RUNS, Bench, set_up
from agentrl.envs.swe.build.choose import Candidate, Chooser, candidates, words_of
from agentrl.envs.swe.build.decoying import Validated, deciding
from agentrl.envs.swe.build.guarding import (
    WRONG_PROGRAMS,
    find_decoys,
    observe,
    share_with_decoys,
)
from agentrl.envs.swe.build.issue import write_issue
from agentrl.envs.swe.build.recipe import RecipeEntry
from agentrl.envs.swe.build.records import Package, RepairTask, mutated
from agentrl.envs.swe.build.suite import Suite
from agentrl.envs.swe.decoys import Decoy, is_guarded
from agentrl.envs.swe.patch import make_patch
from agentrl.envs.swe.report import Saw
from agentrl.errors import ConfigError

_MOST_SHARE: Final = 0.2
"""A bug that makes more of the suite fail than this is no small one."""
_MOST_FAILING: Final = 30
_TRIES_PER_TASK: Final = 24
_WATCHED: Final = 6
"""So many failing tests are looked at for an issue text."""

Say = Callable[[str], None]


class Dropped(Exception):
    """A candidate that is no task; the message is the reason, a few words for a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What came of a package."""

    package: Package
    tasks: tuple[RepairTask, ...]
    dropped: Mapping[str, int]
    """How many candidates were no tasks, by reason."""


@dataclass(frozen=True, slots=True)
class _Kept:
    task: RepairTask
    candidates: tuple[Candidate, ...]


@dataclass(slots=True)
class _Work:
    """One package in the making."""

    bench: Bench
    entry: RecipeEntry
    rng: random.Random
    say: Say
    right: Mapping[str, Sequence[Call]]
    """What each test asks of the package without a bug."""
    decoys: Sequence[Validated] = ()
    kept: list[_Kept] = field(default_factory=list["_Kept"])
    dropped: Counter[str] = field(default_factory=Counter[str])
    seen: set[object] = field(default_factory=set[object])

    def offer(self, *chosen: Candidate, own: Sequence[frozenset[str]] = ()) -> _Kept | None:
        """Plant the candidates together; a task if that is one.

        Args:
            chosen: the candidates.
            own: for each of several candidates the tests that fail only because of it.
        """
        try:
            kept = _Kept(self._make_task(chosen, own), chosen)
        except Dropped as reason:
            self.dropped[str(reason)] += 1
            return None
        self.kept.append(kept)
        kinds = " + ".join(c.mutation.operator for c in chosen)
        self.say(f"  {kept.task.task}  {kinds}  {len(kept.task.fail_to_pass)} failing")
        return kept

    def _make_task(self, chosen: Sequence[Candidate], own: Sequence[frozenset[str]]) -> RepairTask:
        bench = self.bench
        mutations = tuple(candidate.mutation for candidate in chosen)
        try:
            broken, whole = mutated(bench.pristine, mutations)
        except ConfigError as error:
            raise Dropped("overlapping places") from error
        if not all(map(_is_compilable, broken.values())):
            raise Dropped("does not compile")
        if self._is_key_seen_before(tuple(sorted(broken.items()))):
            raise Dropped("duplicate")
        with bench.changed(broken):
            failed, seconds = self._run_broken_suite()
            failing = tuple(failed)
            if self._is_key_seen_before((tuple(c.function for c in chosen), failing)):
                raise Dropped("duplicate")
            if any(not tests.intersection(failing) for tests in own):
                raise Dropped("one bug hides the other")
            names = frozenset[str]().union(*(c.names for c in chosen))
            bugs = [tests & {*failing} for tests in own] or [frozenset(failing)]
            found = self._choose_decoys(bugs, failed, frozenset(failing))  # before what takes long
            told = [
                tests - self._hold_out_tests(tests, mine)
                for tests, mine in zip(bugs, found, strict=True)
            ]
            issue = self.issue(told, names, failing)
            deciding = self._choose_decoys(bugs, failed, self._find_untold_tests(failed, issue))
            times = [seconds]
            for _ in range(RUNS - 1):
                again, seconds = self._run_broken_suite()
                if tuple(again) != failing:
                    raise Dropped("flaky")
                times.append(seconds)
            self._check_repair_passes_all(make_patch(broken, whole), whole)
        key = "".join(mutation.model_dump_json() for mutation in mutations).encode()
        return RepairTask(
            task=f"{bench.archive.name}-{bench.archive.version}-{hashlib.sha256(key).hexdigest()[:8]}",
            package=bench.archive.name,
            mutations=mutations,
            issue=issue,
            fail_to_pass=failing,
            deciding=deciding,
            seconds=tuple(round(t, 2) for t in times),
        )

    def _is_key_seen_before(self, key: object) -> bool:
        known = key in self.seen
        self.seen.add(key)
        return known

    def _run_broken_suite(self) -> tuple[dict[str, Saw | None], float]:
        """The tests that fail now, in the suite's order, each with the comparison it ends at."""
        tests = self.bench.tests
        run = self.bench.runner.run(self.bench.suite)
        if run.report is None:
            raise Dropped("suite stops or hangs")
        outcomes = run.report.outcomes
        if run.report.broken or any(test not in outcomes for test in tests):
            raise Dropped("tests cannot be collected")
        saws = run.report.saws
        failing = {test: saws.get(test) for test in tests if outcomes[test] != "passed"}
        if not failing:
            raise Dropped("no test notices")
        if len(failing) > max(1, min(_MOST_FAILING, int(_MOST_SHARE * len(tests)))):
            raise Dropped("too many tests fail")
        return failing, run.seconds

    def issue(
        self,
        bugs: Sequence[Collection[str]],
        names: frozenset[str],
        failing: Sequence[str],
    ) -> str:
        """The text for bugs that are planted now, each given by tests that it may tell of."""
        bench = self.bench
        told: list[list[Behaviour]] = []
        for tests in bugs:
            watched = sorted(tests, key=lambda test: (len(test), test))[:_WATCHED]
            wrong = calls(
                bench.runner,
                bench.suite.only(watched),
                bench.layout.sources,
                bench.layout.tests,
            )
            right = {test: self.right.get(test, ()) for test in watched}
            told.append([*differences(right, wrong)])
        names = names.union(*map(words_of, failing)) - {"tests", "test", bench.archive.name}
        issue = write_issue(bench.archive.name, told, names, self.rng)
        if not issue:
            raise Dropped("nothing to tell")
        return issue

    def _choose_decoys(
        self,
        bugs: Sequence[Collection[str]],
        failed: Mapping[str, Saw | None],
        untold: frozenset[str],
    ) -> tuple[tuple[int, ...], ...]:
        """For each bug the decoys that decide about it."""
        found = tuple(
            deciding(self.decoys, {test: failed[test] for test in tests}, untold) for tests in bugs
        )
        if not all(found):
            told = len(untold) < len(failed)
            raise Dropped("the issue tells all" if told else "no decoy where tests fail")
        if not is_guarded([[self.decoys[i].decoy for i in numbers] for numbers in found]):
            raise Dropped("too few decoys to rule out guesses")
        return found

    def _hold_out_tests(self, tests: frozenset[str], numbers: Sequence[int]) -> frozenset[str]:
        """Failing tests that the issue does not tell of, so that they can decide."""
        decoys = [self.decoys[number].decoy for number in numbers]
        best = max(decoys, key=lambda decoy: decoy.secret)
        held = tests.intersection(best.sees)
        return held if held < tests else frozenset()

    def _find_untold_tests(self, failed: Mapping[str, Saw | None], issue: str) -> frozenset[str]:
        """The failing tests whose first call that ends another way is not in the issue."""
        bench, tests = self.bench, [*failed]
        wrong = calls(
            bench.runner, bench.suite.only(tests), bench.layout.sources, bench.layout.tests
        )
        told: set[str] = set()
        for test in tests:
            first = next(differences({test: self.right.get(test, ())}, wrong), None)
            if first is None or first.right.arguments in issue:
                told.add(test)
        return frozenset(tests) - told

    def _check_repair_passes_all(self, patch: str, whole: Mapping[str, str]) -> None:
        """The reference patch makes every test pass."""
        bench = self.bench
        if not bench.apply(patch):
            raise Dropped("repair does not apply")
        if any((bench.root / name).read_bytes() != text.encode() for name, text in whole.items()):
            raise Dropped("repair does not apply")
        run = bench.runner.run(bench.suite)
        if run.report is None or not run.report.passed().issuperset(bench.tests):
            raise Dropped("repair does not work")


def build(entry: RecipeEntry, *, seed: int, say: Say) -> Built:
    """Make the tasks of one package.

    Raises:
        ConfigError: The package cannot be used; one sentence says why.
    """
    archive = fetch(entry.source, entry.sha256)
    with ExitStack() as resources:
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-build-"))
        bench = set_up(
            archive,
            Path(folder),
            resources=resources,
            requires=entry.requires,
            arguments=entry.tests,
        )
        say(f"{archive.name} {archive.version}: {len(bench.tests)} tests, {bench.seconds:.1f} s")
        rng = random.Random(f"{seed} {archive.sha256}")
        right = calls(bench.runner, bench.suite, bench.layout.sources, bench.layout.tests)
        work = _Work(bench, entry, rng, say, right)
        found = _list_bugs(bench, bench.suite)
        wrong = rng.sample(found, min(WRONG_PROGRAMS, len(found)))
        work.decoys = find_decoys(bench, observe(bench, wrong), rng)
        share = share_with_decoys(work.decoys, bench.tests)
        say(f"  {len(work.decoys)} decoys, in {share:.0%} of the tests")
        # Where no test with a decoy comes by, no bug can be decided about.
        guarded = sorted({test for one in work.decoys for test in one.decoy.sees})
        _offer_singles(work, _list_bugs(bench, bench.suite.only(guarded)) if guarded else [])
        _offer_pairs(work)
        return Built(
            package=_make_package_record(bench, entry, [one.decoy for one in work.decoys]),
            tasks=tuple(kept.task for kept in work.kept),
            dropped=work.dropped,
        )


def _list_bugs(bench: Bench, suite: Suite) -> list[Candidate]:
    """The bugs on lines that a suite runs."""
    lines = executed_lines(bench.runner, suite, bench.layout.sources, bench.layout.tests)
    return candidates(bench.pristine, bench.layout.sources, lines)


def _offer_singles(work: _Work, found: Sequence[Candidate]) -> None:
    """Tasks with one bug each."""
    wanted = work.entry.tasks - work.entry.multiple
    share = math.ceil(wanted * work.entry.per_file)
    chooser = Chooser(found, work.rng, share)
    for candidate in itertools.islice(chooser, wanted * _TRIES_PER_TASK):
        if len(work.kept) >= wanted:
            break
        if work.offer(candidate) is not None:
            chooser.keep(candidate)


def _offer_pairs(work: _Work) -> None:
    """Tasks with two bugs: pairs of tasks in two functions, each with failing tests of its own."""
    singles = [*work.kept]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(singles, 2)
        if a.candidates[0].function != b.candidates[0].function
        and set(a.task.fail_to_pass) - set(b.task.fail_to_pass)
        and set(b.task.fail_to_pass) - set(a.task.fail_to_pass)
    ]
    work.rng.shuffle(pairs)
    used: Counter[str] = Counter()
    wanted = len(singles) + work.entry.multiple
    for a, b in itertools.islice(pairs, work.entry.multiple * _TRIES_PER_TASK):
        if len(work.kept) >= wanted:
            break
        if used[a.task.task] or used[b.task.task]:
            continue
        first, second = frozenset(a.task.fail_to_pass), frozenset(b.task.fail_to_pass)
        own = (first - second, second - first)
        if work.offer(*a.candidates, *b.candidates, own=own) is not None:
            used.update((a.task.task, b.task.task))


def _make_package_record(bench: Bench, entry: RecipeEntry, decoys: Sequence[Decoy]) -> Package:
    tests: dict[str, list[str]] = defaultdict(list)
    for test in bench.tests:
        file, _, name = test.partition("::")
        tests[file].append(name)
    return Package(
        package=bench.archive.name,
        version=bench.archive.version,
        sha256=bench.archive.sha256,
        license=entry.license,
        paths=bench.layout.paths,
        arguments=bench.suite.arguments,
        requires=entry.requires,
        tests={file: tuple(names) for file, names in tests.items()},
        seconds=bench.seconds,
        as_they_are=bench.as_they_are,
        decoys=tuple(decoys),
    )


def split(packages: Iterable[Package]) -> list[Package]:
    """Give a quarter of the packages to the split "test", chosen by name, never all of them."""
    ordered = sorted(packages, key=lambda p: hashlib.sha256(p.package.encode()).digest())
    held_out = math.ceil(len(ordered) / 4) if len(ordered) > 1 else 0
    return [
        package.model_copy(update={"split": "test" if i < held_out else "train"})
        for i, package in enumerate(ordered)
    ]


def _is_compilable(text: str) -> bool:
    try:
        compile(text, "candidate", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
