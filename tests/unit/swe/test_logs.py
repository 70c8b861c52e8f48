from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.logs import PARSERS, parse_pytest, parse_tap, parse_unittest, read_saws
from agentrl.envs.swe.report import BadReport, Saw
from agentrl.envs.swe.runner import tell_by_log

NAMES = st.from_regex(r"[a-z]{1,6}/test_[a-z]{1,6}\.py::test_[a-z]{1,8}", fullmatch=True)
# Parameters hold whatever people write: blanks, dashes, brackets, other scripts.
PARAMETERS = st.text("ab 1-:/=.ä[]", min_size=1, max_size=12).map(str.strip).filter(bool)
TESTS = st.tuples(NAMES, PARAMETERS).map("{0[0]}[{0[1]}]".format) | NAMES
WORDS = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error"}


@settings(max_examples=60)
@given(st.dictionaries(TESTS, st.sampled_from(list(WORDS)), min_size=1, max_size=5))
def test_a_summary_of_pytest_is_read_back(outcomes: Mapping[str, str]) -> None:
    lines = [f"{word} {test}" for test, word in outcomes.items()]
    found = parse_pytest("===== short test summary info =====\n" + "\n".join(lines) + "\n")
    passed = {test for test, word in outcomes.items() if word == "PASSED"}
    assert {test for test, outcome in found.items() if outcome == "passed"} == passed


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["PASSED", "FAILED"]), min_size=1, max_size=6), st.data())
def test_a_cut_log_passes_nothing_that_did_not_pass(words: list[str], data: st.DataObject) -> None:
    log = "".join(f"a/test_b.py::test_{i} {word} [ {i}%]\n" for i, word in enumerate(words))
    cut = log[: data.draw(st.integers(0, len(log)))]
    for test, outcome in parse_pytest(cut).items():
        assert WORDS[words[int(test.rpartition("_")[2])]] == outcome


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("PASSED a.py::t[x y - z]", {"a.py::t[x y - z]": "passed"}),
        ("FAILED a.py::t[x - y] - assert 1 == 2", {"a.py::t[x - y]": "failed"}),
        ("FAILED a.py::t - KeyError: 'a[0] - b'", {"a.py::t": "failed"}),
        ("\x1b[32mPASSED\x1b[0m a.py::\x1b[1mt\x1b[0m", {"a.py::t": "passed"}),
        ("a.py::t PASSED\x1b[32m          [ 50%]\x1b[0m\r", {"a.py::t": "passed"}),
        ("a.py::t SKIPPED (no net) [ 50%]", {"a.py::t": "skipped"}),
        ("PASSED a.py::t\nPASSED a.py::t", {"a.py::t": "passed"}),
        ("PASSED a.py::t\nFAILED a.py::t - no", {"a.py::t": "failed"}),
        ("XFAIL a.py::t\nPASSED a.py::t", {"a.py::t": "failed"}),
        ("SUBFAIL(i=1) a.py::t - no\nPASSED a.py::t", {"a.py::t": "failed"}),
        ("[i=1] SUBPASS a.py::t", {}),
        ("SKIPPED [1] a.py:3: no net", {}),
        ("2 passed in 0.1s", {}),
    ],
)
def test_pytest(log: str, expected: dict[str, str]) -> None:
    assert parse_pytest(log) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("test_a (m.T) ... ok", {"m.T.test_a": "passed"}),
        ("test_a (m.T.test_a) ... ok", {"m.T.test_a": "passed"}),
        ("test_a (m.T)\nSays it. ... ok", {"m.T.test_a": "passed", "Says it.": "passed"}),
        ("test_a (m.T) ... noise\nmore\nok", {"m.T.test_a": "passed"}),
        ("test_a (m.T) ... skipped 'no (net)'", {"m.T.test_a": "skipped"}),
        ("test_a (m.T) ... expected failure", {"m.T.test_a": "xfailed"}),
        ("test_a (m.T) ... ok\nFAIL: test_a (m.T) (i=1)", {"m.T.test_a": "failed"}),
        ("test_a (m.T) ... ERROR", {"m.T.test_a": "error"}),
        ("test_a (m.T) ... cut", {}),
        ("it is ok", {}),
    ],
)
def test_unittest(log: str, expected: dict[str, str]) -> None:
    assert parse_unittest(log) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("TAP version 13\n1..2\nok 1 - reads\nnot ok 2 - writes", {"reads": "passed"}
         | {"writes": "failed"}),
        ("ok\nok", {"1": "passed", "2": "passed"}),
        ("ok 3 a \\# b", {"a # b": "passed"}),
        ("ok 1 - a # SKIP no net", {"a": "skipped"}),
        ("not ok 1 - a # TODO later", {"a": "xfailed"}),
        ("ok 1 - a\nnot ok 2 - a", {"a": "failed"}),
        ("ok 1 - a\nBail out! gone\nok 2 - b", {"a": "passed"}),
        ("okay then\n# ok 1 - a", {}),
    ],
)  # fmt: skip
def test_tap(log: str, expected: dict[str, str]) -> None:
    assert parse_tap(log) == expected


@settings(max_examples=40)
@given(st.text(st.sampled_from("ok not12-#[]()::.\n PASEDFIL\x1b[0m"), max_size=200))
def test_no_text_is_too_strange(log: str) -> None:
    for parse in PARSERS.values():
        parse(log)


def test_a_test_that_fails_tells_what_it_compared_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saw, _, tell = tell_by_log()

    def told(right: int) -> None:
        with tell():
            assert saw("1.0", 0, 1) == saw("1.0", 1, 1)
            with tell(inside=True):
                assert saw("2.0", 0, 2) == saw("2.0", 1, right)

    monkeypatch.setenv("PYTEST_CURRENT_TEST", "a.py::t[x (y)] (call)")
    told(2)
    assert not read_saws(capsys.readouterr().err)
    for _ in range(2):  # as in a log that shows it twice
        with pytest.raises(AssertionError):
            told(3)
    log = capsys.readouterr().err
    assert read_saws(log) == {"a.py::t[x (y)]": Saw(site="2.0", count=2, sides=("2", "3"))}
    with pytest.raises(AssertionError):
        told(4)
    assert not read_saws(log + capsys.readouterr().err)


@pytest.mark.parametrize("line", ["(", "3", "('t', [])", "('t',)", "[" * 9999, "(1, 2, 3)"])
def test_a_line_that_tells_nothing(line: str) -> None:
    assert not read_saws(f"_agentrl_saw {line}\n")


def test_a_line_that_tells_something_else() -> None:
    with pytest.raises(BadReport):
        read_saws("_agentrl_saw ('t', [1, 2])\n")
