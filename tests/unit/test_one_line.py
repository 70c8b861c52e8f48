"""A line stays one, whatever the text is."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl.boundary import one_line


@given(st.text() | st.text("ab \n\r\x85\u2028\x1b", min_size=200))
def test_one_line_is_one_and_short(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown) <= 240


@given(st.text("abc", min_size=1, max_size=240))
def test_what_fits_stays(text: str) -> None:
    assert one_line(text) == text
    assert one_line(f" {text}\n") == text


def test_a_long_text_keeps_both_ends() -> None:
    shown = one_line("start " + "x" * 10_000 + "\n(env.py, line 3, in score)")
    assert shown.startswith("start xxx")
    assert shown.endswith("xx (env.py, line 3, in score)")
