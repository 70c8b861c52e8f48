import random
from collections.abc import Mapping
from typing import Final

import pytest

from agentrl.envs.swe.build.data_files import find_data_spots, is_data, written_as
from agentrl.envs.swe.build.decoying import Change, as_decoys, candidates, misfits, validated
from agentrl.envs.swe.build.spots import Spot
from agentrl.envs.swe.decoys import Decoy, rewrite_files
from agentrl.envs.swe.report import Outcome, Saw, SuiteReport

TEST: Final = "tests/test_a.py"
JSON: Final = '{"in": "ox", "left": ["oxen", "é\\u00e9"],\r\n "oxen": -3, "n": [4.50, true, -3]}\n'
TABLE: Final = "word,plural\r\nox, oxen\nmouse,mice\n"
TEXTS: Final = {
    TEST: "def test_one():\n    pass\ndef helper():\n    pass\n",
    "tests/data/a.json": JSON,
    "tests/b.csv": TABLE,
    "other/c.csv": TABLE,
}


def saw(left: str, right: str, site: str = "5.0") -> Saw:
    return Saw(site=site, count=1, sides=(left, right))


def found(*saws: Saw) -> dict[tuple[str, str], Spot]:
    spots = find_data_spots(TEXTS, [(TEST, one) for one in saws])
    return {(spot.file, spot.written): spot for spot in spots}


def test_a_value_is_expected_where_a_wrong_program_gives_another() -> None:
    spots = found(saw("'oxs'", "'oxen'"), saw("[7, 8]", "[-3, 8]", "6.0"))
    assert sorted(spots) == [
        ("tests/b.csv", "oxen"), ("tests/data/a.json", '"oxen"'), ("tests/data/a.json", "-3"),
    ]  # fmt: skip
    assert spots["tests/data/a.json", '"oxen"'].sites == {"5.0": 0}
    assert spots["tests/data/a.json", "-3"].sites == {"6.0": 0}
    assert spots["tests/b.csv", "oxen"].users == {"test_one", "helper"}
    assert spots["tests/b.csv", "oxen"].test_file == TEST
    assert not found(saw("'cow'", "'cows'"), saw("?", "'oxen'"))


def test_a_value_that_stands_on_either_side_is_not_known() -> None:
    key = ("tests/b.csv", "oxen")
    assert key not in found(saw("'oxs'", "'oxen'"), saw("'oxen'", "'cows'"))
    assert key in found(saw("'oxs'", "'oxen'"), saw("'oxen'", "'cows'", "6.0"))


@pytest.mark.parametrize(
    ("file", "written", "to", "changed"),
    [
        ("tests/data/a.json", '"oxen"', "co\"ws", JSON.replace('"oxen",', '"co\\"ws",')),
        ("tests/data/a.json", '"é\\u00e9"', "è", JSON.replace('"é\\u00e9"', '"è"')),
        ("tests/data/a.json", "4.50", 5.2, JSON.replace("4.50", "5.20")),
        ("tests/b.csv", "oxen", "cows", TABLE.replace("oxen", "cows")),
    ],
)  # fmt: skip
def test_nothing_but_the_value_is_changed(
    file: str, written: str, to: object, changed: str
) -> None:
    spots = found(saw("1", "'oxen'"), saw("1", ascii("éé"), "6.0"), saw("1", "4.5", "7.0"))
    spot = spots[file, written]
    (decoy,) = as_decoys([Change(spot=spot, to=to, text=str(written_as(spot, to)))])
    assert rewrite_files(TEXTS, [decoy]) == {**rewrite_files(TEXTS, []), file: changed}
    assert {**rewrite_files(TEXTS, []), TEST: TEXTS[TEST]} == TEXTS


def test_a_number_has_as_many_decimals_as_the_one_in_its_place() -> None:
    spot = found(saw("1", "4.5"))["tests/data/a.json", "4.50"]
    assert [written_as(spot, to) for to in (5.2, 5.25, 5.0, 5.125)] == [
        "5.20",
        "5.25",
        "5.00",
        None,
    ]


def test_what_would_be_two_cells_takes_no_cells_place() -> None:
    spot = found(saw("1", "'oxen'"))["tests/b.csv", "oxen"]
    assert [written_as(spot, to) for to in ("cows", "a,b", 'a "b"', "", " a")] == [
        "cows",
        *[None] * 4,
    ]
    assert all(change.to != spot.value for change in candidates(TEXTS, [], random.Random(0)))


@pytest.mark.parametrize(
    ("sides", "is_decoy"),
    [
        (("'oxen'", "'cows'"), True),
        (("['oxen', 1]", "['cows', 1]"), True),
        (("'oxen, oxen'", "'oxen, cows'"), True),
        (("'cows'", "'oxen'"), False),  # the program was given another input
        (("'oxs'", "'oxen'"), False),
        (("['oxen', 1]", "['cows', 2]"), False),
        (("'mice'", "'cows'"), False),
    ],
)
def test_a_right_program_has_to_show_the_value_in_whose_place_the_decoy_stands(
    sides: tuple[str, str], is_decoy: bool
) -> None:
    spot = found(saw("'oxs'", "'oxen'"))["tests/b.csv", "oxen"]
    test = f"{TEST}::test_one"
    outcomes: Mapping[str, Outcome] = {test: "failed"}
    report = SuiteReport(outcomes=outcomes, saws={test: saw(*sides)}, broken={}, status=1)
    made = validated([Change(spot=spot, to="cows", text="cows")], report, frozenset([test]), "", {})
    assert [[*one.decoy.sees] for one in made] == ([[test]] if is_decoy else [])


def test_data_lie_below_a_folder_of_tests() -> None:
    files = ["tests/a.json", "tests/d/a", "tests/a.py", "a.json", "testsuite/a.json", "tests/a.pyc"]
    assert [file for file in files if is_data(file, [TEST])] == files[:2]
    assert not is_data("a.json", ["test_a.py"])


def test_a_file_that_another_test_reads_too_has_no_decoy() -> None:
    mine, other = f"{TEST}::test_one", "tests/test_b.py::test_two"
    decoy = Decoy(
        file="tests/b.csv", place=(1, 0, 1, 4), to="cows", site="5.0", sees={mine: "'oxen'"}
    )
    outcomes: dict[str, Outcome] = {mine: "failed", other: "passed"}
    saws = {mine: saw("'oxen'", "'cows'")}
    report = SuiteReport(outcomes=outcomes, saws=saws, broken={}, status=1)
    assert misfits([decoy], report, [mine, other]) == []
    report = SuiteReport(outcomes={**outcomes, other: "failed"}, saws=saws, broken={}, status=1)
    assert misfits([decoy], report, [mine, other]) == [decoy]
