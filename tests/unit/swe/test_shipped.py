"""The tasks that come with agentrl are as many and as mixed as they are said to be."""

import ast
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from agentrl.envs.swe.build.operators import OPERATORS
from agentrl.envs.swe.build.recipe import SHIPPED, read_recipe
from agentrl.envs.swe.build.records import TASKS, read_records, write_records
from agentrl.envs.swe.decoys import is_guarded
from agentrl.envs.swe.runner import literal
from agentrl.errors import ConfigError
from tests.contract.sandbox.tell_apart import tell_apart

_PAIRS = 600
PACKAGES, RECORDS, _ = read_records(TASKS)


def test_there_are_enough_of_each() -> None:
    assert len(RECORDS) >= 100
    assert len({task.task for task in RECORDS}) == len(RECORDS)
    by_package = Counter(task.package for task in RECORDS)
    assert sum(count >= 10 for count in by_package.values()) >= 5
    assert sum(len(task.mutations) > 1 for task in RECORDS) >= 15
    assert len({m.operator for task in RECORDS for m in task.mutations}) >= 8
    files = Counter(
        file for task in RECORDS for file in {(task.package, m.file) for m in task.mutations}
    )
    assert max(files.values()) <= 0.15 * len(RECORDS), files.most_common(2)


def test_both_splits_have_packages() -> None:
    assert {package.split for package in PACKAGES.values()} == {"train", "test"}


def test_each_was_validated_three_times() -> None:
    for task in RECORDS:
        tests = set(PACKAGES[task.package].test_ids())
        assert set(task.fail_to_pass) < tests
        assert len(task.pass_to_pass(PACKAGES[task.package])) + len(task.fail_to_pass) == len(tests)
        assert (len(task.seconds), task.flaky) == (3, 0)


def test_no_issue_names_a_failing_test() -> None:
    for task in RECORDS:
        names = {name for test in task.fail_to_pass for name in test.split("[")[0].split("::")[1:]}
        assert not names & set(re.findall(r"\w+", task.issue)), task.task


def test_the_recipe_names_the_same_archives() -> None:
    recipe = {entry.source: entry.sha256 for entry in read_recipe(SHIPPED)}
    for package in PACKAGES.values():
        assert recipe[f"{package.package}=={package.version}"] == package.sha256
        assert package.license in ("MIT", "BSD-3-Clause")


def test_records_are_written_as_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(write_records(PACKAGES.values(), RECORDS))
    assert read_records(path) == (PACKAGES, RECORDS, ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is no record"),
        ('{"task": "a", "package": "b"}', "line 1 is no record"),
        ('{"package": "a", "sha": 1}', "line 1 is no record"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=said) as error:
        read_records(path)
    assert "\n" not in str(error.value)


def test_a_task_needs_its_package(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(write_records([], RECORDS[:1]))
    with pytest.raises(ConfigError, match="has no line before it"):
        read_records(path)


def test_the_docs_list_every_kind() -> None:
    text = (Path(__file__).parents[3] / "docs/swe.md").read_text()
    table = text.partition("### The kinds of bugs")[2].partition("###")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == OPERATORS.keys()


def test_each_bug_has_decoys_that_no_guess_beats() -> None:
    for task in RECORDS:
        decoys = PACKAGES[task.package].decoys
        bugs = [[decoys[number] for number in numbers] for numbers in task.deciding]
        assert len(bugs) == len(task.mutations)
        for decoy in (decoy for bug in bugs for decoy in bug):
            assert not decoy.sees.keys().isdisjoint(task.fail_to_pass)
        assert is_guarded(bugs), task.task


@pytest.mark.nightly  # what ships seldom changes
@pytest.mark.timeout(300)
def test_no_text_tells_a_decoy() -> None:
    """A classifier that has seen half of the pairs of values guesses about the others."""
    found = [decoy for package in PACKAGES.values() for decoy in package.decoys]
    pairs: list[tuple[str, str]] = []
    for decoy in random.Random(0).sample(found, len(found)):
        true, other = next(iter(decoy.sees.values())), literal(ast.literal_eval(decoy.to))
        # What stands in a call of `Fraction` and the like is told as a part of it.
        if true[:1] == other[:1] or (true + other).strip("-").isdigit():
            pairs.append((true, other))
    real, decoys = zip(*pairs[:_PAIRS], strict=True)
    said = [tell_apart(real, decoys, seed=seed) for seed in range(3)]
    assert sum(said) / len(said) <= 0.55, said
