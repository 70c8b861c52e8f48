from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import EnvironmentFault
from agentrl.tools import result_text, truncate_middle


class Letters:
    """A token for each character; several decoded together come back as they were."""

    def __init__(self) -> None:
        self.num_chars = 0

    def encode(self, text: str, /, *, specials: bool) -> Sequence[int]:
        assert not specials
        self.num_chars += len(text)
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int], /) -> str:
        return "".join(map(chr, ids))


def test_a_short_text_stays_as_it_is() -> None:
    assert truncate_middle("abc", 3, Letters()) == "abc"
    assert truncate_middle("ä" * 6, 3) == "ä" * 6


def test_head_and_tail_stay_and_the_marker_counts() -> None:
    text = "".join(chr(97 + i % 26) for i in range(1000))
    cut = truncate_middle(text, 100, Letters())
    assert len(cut) <= 100
    head, marker, tail = cut.split("\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert marker == f"[... {1000 - len(head) - len(tail)} characters left out ...]"


def test_a_huge_text_is_cut_before_it_is_tokenized() -> None:
    letters = Letters()
    cut = truncate_middle("a" + "b" * 10**7 + "c", 100, letters)
    assert cut.startswith("ab")
    assert cut.endswith("bc")
    assert letters.num_chars < 10**5


@given(st.text(max_size=400), st.integers(1, 120))
def test_the_limit_holds(text: str, limit: int) -> None:
    assert len(truncate_middle(text, limit, Letters())) <= limit
    assert len(truncate_middle(text, limit).encode()) <= 4 * limit


@given(st.text(alphabet="aä你😀", min_size=200, max_size=300))
def test_characters_stay_whole(text: str) -> None:
    assert "\ufffd" not in truncate_middle(text, 40)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit is 0"):
        truncate_middle("a", 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [("a\nb", "a\nb"), ("\ud800a", "?a"), ([1, "ä"], '[1, "ä"]'), (True, "true"), (1.5, "1.5")],
)
def test_results_become_text(value: object, text: str) -> None:
    assert result_text("t", value) == text


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), {"a": b""}])
def test_results_without_json_are_faults(value: object) -> None:
    with pytest.raises(EnvironmentFault, match="tool t returned a"):
        result_text("t", value)
