import itertools

import pytest

from agentrl.envs.swe.build.spots import find_spots
from agentrl.envs.swe.rewriting import rewrite_tests

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
    assert "assert _agentrl_saw('8.11', 0, f(n)) == _agentrl_saw('8.11', 1, square)" in text
    assert "self.assertEqual(_agentrl_saw('16.8', 0, f(3)), _agentrl_saw('16.8', 1, " in text


def test_under_another_command_a_file_loads_what_it_calls_and_wraps_its_tests() -> None:
    text = rewrite_tests(f"from __future__ import annotations\n{TEXT[15:]}", {}, by_log=True)
    first, second, *lines = text.split("\n")
    assert first == "from __future__ import annotations"
    assert second.startswith("_agentrl_saw, _agentrl_tell = ")
    wrapped = [after.strip() for line, after in itertools.pairwise(lines) if "@_agentrl" in line]
    assert wrapped == [line.strip() for line in lines if "def test_" in line]
    assert "    @_agentrl_tell\n    def test_inside" in text


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
