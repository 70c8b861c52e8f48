"""Text that comes in piece by piece is the text of all ids."""

import json
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
    first, second, _ = tokenizer.encode("€", specials=False)
    for ids in ([first] * 200, [first, second] * 200, [first, second, first] * 200, [second] * 9):
        pieces = stream(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids)
        assert max(map(len, pieces)) < 20
    assert stream(tokenizer, [first]) == ["", HALF]


def test_characters_whose_bytes_share_tokens_are_whole(qwen_like: Path) -> None:
    definition = json.loads((qwen_like / "tokenizer.json").read_text(encoding="utf-8"))
    definition["added_tokens"] = []
    first = max(definition["model"]["vocab"].values()) + 1
    for number, (left, right) in enumerate([("¬", "ð"), ("Ģ", "â")], first):  # bytes ac f0, 80 e2
        definition["model"]["vocab"][left + right] = number
        definition["model"]["merges"].append([left, right])
    tokenizer = Tokenizer(json.dumps(definition), "")
    text = "€😀" * 20
    ids = tokenizer.encode(text, specials=False)
    assert first in ids
    assert first + 1 in ids
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text
    assert not any(HALF in piece for piece in pieces)
