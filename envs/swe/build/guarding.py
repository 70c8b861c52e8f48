"""The decoys of a package, and which of them decide about a bug.

some bugs, one after the other -> what wrong programs give -> decoys -> all of them together
"""

import random
from collections.abc import Iterable, Sequence
from typing import Final, cast

from agentrl.envs.swe.build.bench import Bench
from agentrl.envs.swe.build.choose import Candidate
from agentrl.envs.swe.build.decoying import Observed, Validated, search
from agentrl.envs.swe.build.records import mutated
from agentrl.envs.swe.decoys import Decoy, rewrite_files
from agentrl.envs.swe.report import Saw, SuiteReport, file_of
from agentrl.errors import ConfigError

WRONG_PROGRAMS: Final = 24


def observe(bench: Bench, bugs: Iterable[Candidate]) -> Observed:
    """What wrong programs give where tests fail by them."""
    seen: list[tuple[str, Saw]] = []
    for bug in bugs:
        try:
            broken, _ = mutated(bench.pristine, [bug.mutation])
        except ConfigError:
            continue
        with bench.changed(broken):
            report = bench.runner.run(bench.suite).report
        seen += [(file_of(t), saw) for t, saw in report.saws.items()] if report else []
    return seen


def find_decoys(bench: Bench, observed: Observed, rng: random.Random) -> list[Validated]:
    """The decoys of a package."""
    # What stands in the files that the agent finds, those that tests read among them.
    hidden = {bench.pristine / test for test in bench.texts if test.endswith(".py")}
    files = (path for path in sorted(bench.pristine.rglob("*")) if path.is_file())
    told = "\n".join(path.read_text(errors="replace") for path in files if path not in hidden)
    asking = search(bench.texts, frozenset(bench.tests), observed, rng, told, {})
    try:
        decoys = next(asking)
        while True:
            decoys = asking.send(_run_with_decoys(bench, decoys))
    except StopIteration as stop:
        return cast("list[Validated]", stop.value)


def _run_with_decoys(bench: Bench, decoys: Sequence[Decoy]) -> SuiteReport | None:
    touched = {decoy.file for decoy in decoys}
    texts = {file: text for file, text in bench.texts.items() if file in touched}
    with bench.changed(rewrite_files(texts, decoys)):
        return bench.runner.run(bench.suite).report


def share_with_decoys(decoys: Sequence[Validated], tests: Sequence[str]) -> float:
    """How many of the tests have one."""
    covered = frozenset(test for one in decoys for test in one.decoy.sees)
    return len(covered.intersection(tests)) / len(tests)
