"""The small package's tests in two manners, as suites of the naive grader and as tasks."""

from typing import Final

from tests.contract.sandbox import shop
from tests.contract.sandbox.naive.rule import Suite

CASES: Final = '''"""The prices, in unittest's manner."""
import unittest

from shop.prices import total


class TestTotal(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_half(self):
        found = total([100, 100], 50)
        self.assertEqual(found, 100)
        self.assertIsInstance(found, int)

    def test_floor(self):
        self.assertEqual(total([1], floor=5), 5)

    def test_refused(self):
        with self.assertRaises(ValueError):
            total([], 101)

    def test_gift(self):
        found = total([30, 10], 100)
        self.assertEqual(found, 0)
        self.assertIsInstance(found, int)
'''
_FOUND: Final = {**shop.FILES, "src/shop/prices.py": shop.WRONG}
_FILE: Final = "tests/test_prices.py"
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
}  # fmt: skip
"""Each has two failing tests, and the same bug."""
