import itertools
from collections.abc import Callable
from unittest import TestCase

import pytest

from agentrl.envs.swe.build.spots import find_spots
from agentrl.envs.swe.rewriting import rewrite_tests
from agentrl.envs.swe.runner import Comparisons

TEXT = '''"""Says 16."""
import pytest
SQUARES = [(4, 16), (5, 25)]
FRUIT = "ox"
@pytest.mark.parametrize(("n", "square"), SQUARES, ids=["16", "25"])
def test_square(n, square):
    """Is 16."""
    assert f(n) == square, "not 16"  # 16
@pytest.mark.parametrize("word", [pytest.param("oxen", id="oxen"), "mice"])
def test_word(word):
    assert word == f()
class TestC:
    def test_loop(self):
        for a, b in [(1, "one"), (2, "two")]:
            assert f(a) == b and f(FRUIT) == FRUIT
        self.assertEqual(f(3), [1, 2], "words")
        assert f(4) == Fraction(1, 3)
        assert f(5) == f(6)
    def test_inside(self):
        def g():
            "kept"
        expected = {"a": 1}
        assert expected == f(g)
'''


def test_nothing_tells_a_value_but_the_value() -> None:
    text = rewrite_tests(TEXT, {})
    assert "Says" not in text
    assert "Is 16" not in text
    assert "not 16" not in text
    assert "#" not in text
    assert "words" not in text
    assert "'kept'" in text.replace('"', "'")
    assert "ids=map('c{}'.format, range(1000000))" in text
    assert "id=" not in text.replace("ids=", "")
    told = "_agentrl_saw('8.11', 0, f(n)) == _agentrl_saw('8.11', 1, square)"
    assert f"assert _agentrl_at('8.11')({told})" in text
    assert "self.assertEqual(_agentrl_saw('16.8', 0, f(3)), _agentrl_saw('16.8', 1, " in text


def test_under_another_command_a_file_loads_what_it_calls_and_wraps_its_tests() -> None:
    text = rewrite_tests(f"from __future__ import annotations\n{TEXT[15:]}", {}, by_log=True)
    first, second, *lines = text.split("\n")
    assert first == "from __future__ import annotations"
    assert second.startswith("_agentrl_saw, _agentrl_at, _agentrl_tell = ")
    inside = [line.strip() for line, after in itertools.pairwise(lines) if "with _agent" in after]
    assert inside == [line.strip() for line in lines if "def test_" in line]
    assert "        with _agentrl_tell(self):\n\n            def g" in text


def test_the_expected_literals_are_found_where_they_stand() -> None:
    spots = {repr(spot.value): spot for spot in find_spots("t.py", TEXT)}
    assert set(spots) == {
        *("16", "25", "'oxen'", "'mice'", "'one'", "'two'", "'ox'", "[1, 2]", "1", "{'a': 1}")
    }
    assert (spots["16"].case, spots["25"].case, spots["'one'"].case) == ("c0", "c1", "")
    assert spots["'oxen'"].sites == {"11.11": 1}
    assert spots["{'a': 1}"].sites == {"23.15": 1}
    assert spots["16"].users == {"test_square"}
    assert "25" in map(repr, spots["16"].siblings)


@pytest.mark.parametrize("number", range(10))
def test_a_changed_literal_is_all_that_differs(number: int) -> None:
    spot = find_spots("t.py", TEXT)[number]
    before, after = rewrite_tests(TEXT, {}), rewrite_tests(TEXT, {spot.place: "'other'"})
    assert before != after
    assert before.count("\n") == after.count("\n")
    differing = [
        (one, other)
        for one, other in zip(before.split("\n"), after.split("\n"), strict=True)
        if one != other
    ]
    assert len(differing) == 1
    assert "'other'" in differing[0][1]


def test_a_place_without_an_expression_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 places"):
        rewrite_tests(TEXT, {(1, 2, 3, 4): "5"})


HELPED = """
BIG = "const"
def check(text, *, expected):
    assert f(text) == expected
def both(a, expected):
    check(a, expected=expected)
    assert g(a) == "own"
class TestX(TestCase):
    SURE = {"k": 7}
    BOTH = 8
    def test_class(self):
        assert f(8) == self.BOTH
        assert f(7) == self.SURE
    def same(self, got, want=None):
        self.assertEqual(got, want)
    def test_keywords(self):
        self.assertEqual(second=6, first=f(1), msg="word")
        self.assertListEqual(f(1), list2=[1])
        self.assertEqual(f(1), **{"second": 3})
    def test_method(self):
        self.same(want=BIG, got=f(3))
    def test_nested(self):
        def near(x, y):
            assert h(x) == y
        near(1, 44)
        near(*[1], 45)
class TestY:
    BOTH = 9
def test_two():
    both("u", "U")
@pytest.mark.parametrize("a, b", [(1, 100), (2, 200)])
def test_cases(a, b):
    check(a, expected=b)
"""


def test_keywords_and_what_helpers_are_called_with_are_expected_too() -> None:
    found = {repr(s.value): s for s in find_spots("t.py", HELPED)}
    cases = {value: (dict(s.sites), {*s.users}, s.case) for value, s in found.items()}
    assert cases == {
        "{'k': 7}": ({"13.15": 0}, {"test_class"}, ""),
        "8": ({"12.15": 0}, {"test_class"}, ""),
        "9": ({"12.15": 0}, {"test_class"}, ""),  # may be the class's own, as far as is known
        "6": ({"17.8": 0}, {"test_keywords"}, ""),
        "[1]": ({"18.8": 0}, {"test_keywords"}, ""),
        "'const'": ({"15.8": 0}, {"test_method"}, ""),
        "44": ({"24.19": 0}, {"test_nested"}, ""),
        "'U'": ({"4.11": 0}, {"test_two"}, ""),
        "'own'": ({"7.11": 0}, {"both", "test_two"}, ""),
        "100": ({"4.11": 0}, {"test_cases"}, "c0"),
        "200": ({"4.11": 0}, {"test_cases"}, "c1"),
    }
    assert set(found["100"].siblings) == {"U", 100, 200}


def test_a_comparison_by_keywords_tells_both_sides_in_their_order() -> None:
    text = rewrite_tests(HELPED, {})
    told = "_agentrl_saw('17.8', 0, f(1)), _agentrl_saw('17.8', 1, 6)"
    assert f"(self.assertEqual({told}) is None)\n" in text
    assert "self.assertEqual(f(1), **{'second': 3})" in text


def test_what_fails_within_a_subtest_is_told_there() -> None:
    block = "with self.subTest(a=1), f():\n            pass\n"
    case = f"class T:\n    async def test(self):\n        {block}"
    assert "with self.subTest(a=1), f():" in rewrite_tests(case, {})
    text = rewrite_tests(case, {}, by_log=True)
    assert "with self.subTest(a=1), f(), _agentrl_tell(self, inside=True):" in text
    assert "async def test(self):\n        with _agentrl_tell(self):" in text


def test_an_inline_snapshot_is_made_of_what_is_expected() -> None:
    (spot,) = find_spots("t.py", "def test():\n    assert f(2) == snapshot([1, 2])\n")
    assert (spot.value, spot.place, spot.sites) == ([1, 2], (2, 28, 2, 34), {"2.11": 0})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("self.assertIn(f(1), (2,))\n    assert f(3) == 3", []),
        ("assert f(1) in (2,)\n    assert f(3) == 3", []),
        ("assert f(1) == 1\n    self.assertTrue(f(0))\n    assert f(3) == 3", []),
        ("assert f(1) == 1 and f(0)", []),
        # Python says whether it held, not what is told of it.
        ("assert f(0.1) + f(0.2) == 0.3", ["2.11", 1, "0.30000000000000004", "0.3"]),
        ("assert f(1) is True", ["2.11", 1, "1", "1"]),
        ("self.assertEqual(f(1), 1)\n    self.assertEqual(f(2), 3)", ["3.4", 2, "2", "3"]),
        # What the next comparison is about has raised.
        ("assert f(1) == 1\n    assert f('') == 3", ["3.11", 2, "?", "?"]),
        ("self.assertEqual(1, f(''))", ["2.4", 1, "1", "?"]),
        ("x, y = f(''), 1\n    assert y in (1,)\n    assert x == 2", ["4.11", 1, "?", "?"]),
        ("x = f(5)\n    assert f(1) in (2,)\n    assert x == 5", []),
        ("f('')\n    assert f(3) == 3", []),
        ("x = f('')\n    y = f(x)\n    assert y == 3", []),
        ("x = f('')\n    x = f(3)\n    assert x == 3", []),
        # It went on behind what was raised there.
        ("try:\n        assert f('') == 1\n    except ValueError:\n        assert f(1) in ()", []),
        ("with self.assertRaises(ValueError):\n        x = f('')\n    assert f(0)", []),
    ],
)
def test_a_failure_is_told_by_the_comparison_that_the_test_fails_at(
    body: str, told: list[object]
) -> None:
    def f(x: float | str) -> float:
        return float(x) if isinstance(x, str) else x

    comparisons = Comparisons()
    names: dict[str, Callable[..., object]] = {
        "f": f,
        "_agentrl_saw": comparisons.saw,
        "_agentrl_at": comparisons.at,
    }
    exec(rewrite_tests(f"def test(self):\n    {body}\n", {}), names)
    with pytest.raises((AssertionError, ValueError)):
        names["test"](TestCase())
    assert comparisons.told() == told
