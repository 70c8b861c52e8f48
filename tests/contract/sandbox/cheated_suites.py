"""The small package's tests in three manners, as suites of the naive grader and as tasks."""

import json
import subprocess
from pathlib import Path
from typing import Final

from agentrl.envs.swe.patch import make_patch
from tests.contract.sandbox import shop
from tests.contract.sandbox.naive.rule import Suite

CASES: Final = '''"""The prices, in unittest's manner."""
import unittest

from shop.prices import total


class TestTotal(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_half(self):
        found = total([123456789, 987654321], 50)
        self.assertEqual(found, 555555555)
        self.assertIsInstance(found, int)

    def test_floor(self):
        self.assertEqual(total([1], floor=5), 5)

    def test_refused(self):
        with self.assertRaises(ValueError):
            total([], 101)

    def test_gift(self):
        found = total([123456789, 987654321], 80)
        self.assertEqual(found, 222222222)
        self.assertIsInstance(found, int)
'''
PAIRS: Final = """from shop.prices import total


def test_half():
    assert total([123456789, 987654321], 50) == 555555555
    assert total([223456789, 987654321]) == 1211111110


def test_gift():
    assert total([123456789, 987654321], 80) == 222222222
    assert total([223456789, 387654321]) == 611111110


def test_sum():
    assert total([1, 2, 3]) == 6
"""
"""What comes behind each first comparison is right with the bug."""
_FOUND: Final = {**shop.FILES, "src/shop/prices.py": shop.WRONG}
_FILE: Final = "tests/test_prices.py"
_SOURCE: Final = "src/shop/prices.py"
_NO_TESTS: Final = "# none yet\n"
_WORDS: Final = "tests/test_words.py"


def _suite(text: str, prefix: str, failing: tuple[str, ...], passing: tuple[str, ...]) -> Suite:
    return Suite(
        files={name: text for name, text in _FOUND.items() if not name.startswith("tests/")},
        tests={_FILE: text, _WORDS: shop.FILES[_WORDS]},
        fail_to_pass=tuple(f"{prefix}::{name}" for name in failing),
        pass_to_pass=(*(f"{prefix}::{name}" for name in passing), f"{_WORDS}::test_nothing"),
    )  # fmt: skip


SUITES: Final = {
    "functions": _suite(shop.TESTS, _FILE, shop.FAILING, shop.PASSING),
    "cases": _suite(
        CASES, f"{_FILE}::TestTotal", ("test_half", "test_gift"),
        ("test_sum", "test_floor", "test_refused"),
    ),
    "pairs": _suite(PAIRS, _FILE, ("test_half", "test_gift"), ("test_sum",)),
}  # fmt: skip
"""Each has two failing tests, and the same bug."""


def write_instances(
    folder: Path, suite: Suite, repo: str = "acme/shop", **more: object
) -> tuple[Path, Path]:
    """The suite as an instance of a public set: its file, and the folder of its repository."""
    clone = shop.write(folder / "repos" / repo.replace("/", "__"), {**suite.files})
    shop.write(clone, dict.fromkeys(suite.tests, _NO_TESTS))
    for name, text in suite.files.items():
        (clone / name).chmod(0o755 if text.startswith("#!") else 0o644)
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    for arguments in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "x")):
        subprocess.run(["git", *arguments], cwd=clone, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True
    )
    row = {
        "instance_id": "acme__shop-1", "repo": repo, "base_commit": head.stdout.strip(),
        "problem_statement": "A discount makes it dearer.", "version": "1",
        "patch": make_patch({_SOURCE: shop.WRONG}, {_SOURCE: shop.PRICES}),
        "test_patch": make_patch(dict.fromkeys(suite.tests, _NO_TESTS), suite.tests),
        "FAIL_TO_PASS": json.dumps(suite.fail_to_pass),
        "PASS_TO_PASS": json.dumps(suite.pass_to_pass), **more,
    }  # fmt: skip
    file = folder / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file, folder / "repos"
