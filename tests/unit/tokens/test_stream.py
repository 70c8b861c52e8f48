"""Text that comes in piece by piece is the text of all ids."""

from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.tokens import TextStream, Tokenizer

load = cache(Tokenizer.load)
same_fixture = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF = "\ufffd"


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    text = TextStream(tokenizer)
    return [*(text.feed([number]) for number in ids), text.finish()]


@given(text=st.text())
@same_fixture
def test_whole_text_never_shows_half_a_character(qwen_like: Path, text: str) -> None:
    tokenizer = load(qwen_like)
    pieces = stream(tokenizer, tokenizer.encode(text, specials=False))
    assert "".join(pieces) == text
    assert HALF in text or not any(HALF in piece for piece in pieces)


@given(data=st.data())
@same_fixture
def test_the_pieces_of_any_ids_are_the_text_of_all(qwen_like: Path, data: st.DataObject) -> None:
    tokenizer = load(qwen_like)
    halves = sorted({n for c in "€😀é" for n in tokenizer.encode(c, specials=False)})
    some = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(halves)
    ids = data.draw(st.lists(some, max_size=40))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)
    pieces = TextStream(tokenizer)
    assert pieces.feed(ids) + pieces.finish() == tokenizer.decode(ids)


def test_bytes_that_are_no_text_do_not_pile_up(qwen_like: Path) -> None:
    tokenizer = load(qwen_like)
    first = tokenizer.encode("€", specials=False)[0]
    pieces = stream(tokenizer, [first] * 200)
    assert "".join(pieces) == HALF * 200
    assert len(pieces[-1]) < 20
    assert stream(tokenizer, [first]) == ["", HALF]
