"""Bytes that an edit does not name stay as they are."""

import codecs
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.errors import ToolError
from agentrl.tools.edits import FileText, insert_lines, line_shown, replace_once

_pieces = st.sampled_from(
    [b"a", b"b ", b"\n", b"\r\n", b"\r", b"\xe9", b"\xff\xfe", b"\0", "é€😀\ufffd".encode()]
)
_bytes = st.lists(_pieces, max_size=12).map(b"".join)
_marked = st.tuples(
    st.sampled_from([(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF32_BE, "utf-32-be")]),
    st.text("ab\r\né😀", max_size=12),
).map(lambda drawn: drawn[0][0] + drawn[1].encode(drawn[0][1]))
_with_mark = _bytes.map(codecs.BOM_UTF8.__add__)
files = st.one_of(st.binary(max_size=40), _bytes, _bytes, _marked, _with_mark)
texts = st.text("ab\r\né\ufffd ", max_size=6)


@given(files)
def test_every_file_has_a_way_back(data: bytes) -> None:
    file = FileText.read(data)
    assert file.encoded(file.text) == data
    assert "".join(file.lines) == file.text


@given(files, st.integers(0, 40), st.integers(1, 40), texts)
def test_a_replacement_names_all_that_it_changes(
    data: bytes, start: int, length: int, new: str
) -> None:
    file = FileText.read(data)
    start %= len(file.shown) or 1
    old = file.shown[start : start + length]
    assume(old and file.text[start - 1 : start + 1] != "\r\n")
    try:
        after, place = replace_once(file, old, new, "f")
    except ToolError:
        return
    before = file.encoded(file.text[:place])
    named = file.text[place : place + len(old)]
    behind = file.encoded(file.text[place:])[len(file.encoded(named)) :]
    changed = file.encoded(after)
    assert changed.startswith(before)
    assert changed.endswith(behind)
    if place == start and named == old and "\n" in old and "\ufffd" not in new:
        assert changed == before + new.encode(file.codec) + behind


@given(files, st.data())
def test_what_is_shown_can_be_replaced(data: bytes, draw: st.DataObject) -> None:
    file = FileText.read(data)
    shown = [line_shown(line) for line in file.lines]
    assume(shown and "X" not in file.text and "Y" not in file.text)
    first = draw.draw(st.integers(0, len(shown) - 1))
    last = draw.draw(st.integers(first, len(shown) - 1))
    old = "\n".join(shown[first : last + 1])
    assume(old)
    try:
        after, _ = replace_once(file, old, "X" + old + "Y", "f")
    except ToolError as error:
        said = str(error)
        allowed = ("times, at the lines", "only ASCII", "only the white space differs")
        if any(words in said for words in allowed):
            return  # a line that ends in two carriage returns cannot be told apart
        raise
    assert after.replace("X", "", 1).replace("Y", "", 1) == file.text


@given(files, st.integers(0, 9), st.text("ab\n", max_size=5))
def test_an_insertion_leaves_all_bytes_there(data: bytes, line: int, new: str) -> None:
    file = FileText.read(data)
    assume(line <= len(file.lines))
    after, place = insert_lines(file, line, new)
    added = after[place : len(after) - len(file.text) + place]
    assert after == file.text[:place] + added + file.text[place:]
    changed = file.encoded(after)
    assert changed.startswith(file.encoded(file.text[:place]))
    assert changed.endswith(file.encoded(file.text[place:]))
    assert added.replace("\r", "").strip("\n") == new.strip("\n") or "\r" in added
    ends = {line_[len(line_shown(line_)) :] for line_ in file.lines}
    if ends == {"\r\n"}:
        assert "\n" not in added.replace("\r\n", "")


@pytest.mark.parametrize(
    ("data", "old", "new", "after"),
    [
        (b"caf\xe9 = 1\nx = 2\n", "x = 2", "x = 3", b"caf\xe9 = 1\nx = 3\n"),
        (b"caf\xe9 = 1\n", "caf\ufffd = 1", "caf\ufffd = 2", b"caf\xe9 = 2\n"),
        (b"a\r\nb\r\nc", "a\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc"),
        (b"a\r\nb\nc\r\n", "a\nb\nc", "a\nb\nd", b"a\r\nb\nd\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"a\rb\r", "a\nb", "a\nc", b"a\rc\r"),
        (b"\0\xff a \0", "a", "é".encode().decode(), None),
        (codecs.BOM_UTF16_LE + "ä b".encode("utf-16-le"), "b", "é",
         codecs.BOM_UTF16_LE + "ä é".encode("utf-16-le")),
        (b"\xef\xbb\xbfa", "a", "b", b"\xef\xbb\xbfb"),
        (b"aaa", "aa", "b", None),
        (b"\xe9\xe9", "\ufffd", "x", None),
    ],
)  # fmt: skip
def test_replacements(data: bytes, old: str, new: str, after: bytes | None) -> None:
    file = FileText.read(data)
    if after is None:
        with pytest.raises(ToolError, match=r"only ASCII can be added|2 times"):
            replace_once(file, old, new, "f")
    else:
        assert file.encoded(replace_once(file, old, new, "f")[0]) == after


@pytest.mark.parametrize(
    ("data", "line", "new", "after"),
    [
        (b"a\r\nb\r\n", 1, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\r\nb", 2, "x\n", b"a\r\nb\r\nx"),
        (b"a\nb\r\nc\r\n", 1, "x", b"a\nx\nb\r\nc\r\n"),
        (b"a\rz\nb\n", 0, "x", b"x\na\rz\nb\n"),
        (b"\xef\xbb\xbfa\n", 0, "x", b"\xef\xbb\xbfx\na\n"),
        (b"", 0, "x", b"x\n"),
        (b"\xe9", 1, "x", b"\xe9\nx"),
    ],
)
def test_insertions(data: bytes, line: int, new: str, after: bytes) -> None:
    file = FileText.read(data)
    assert file.encoded(insert_lines(file, line, new)[0]) == after


@pytest.mark.parametrize(
    ("text", "old", "said"),
    [
        ("a" * (1 << 19), "a" * 50_000, "more than 10 times"),
        ("a" * (1 << 19), "a" * 50_000 + "b", "is not in"),
        ("a\r\n" * (1 << 17), "a\n" * 25_000 + "b", "is not in"),
    ],
)
def test_text_that_repeats_itself_holds_nobody_up(text: str, old: str, said: str) -> None:
    before = time.process_time()
    with pytest.raises(ToolError, match=said):
        replace_once(FileText.read(text.encode()), old, "", "f")
    assert time.process_time() - before < 5


def test_a_large_change_is_found_in_time() -> None:
    file = FileText.read(b"x\n" + b"a\r\n" * 4000 + b"y\n")
    old, before = "a\n" * 4000, time.process_time()
    after, _ = replace_once(file, old, "a\n" + "b\n" * 3998 + "a\n", "f")
    assert after == "x\na\r\n" + "b\r\n" * 3998 + "a\r\ny\n"
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("data", "old"),
    [
        (b"a\xe9b a\xef\xbf\xbdb", "a\ufffdb"),
        (b"x\r\ny\r\n--\nx\ny\n", "x\ny"),
        (b"x\ny\n--\r\nx\r\ny", "x\ny"),
    ],
)
def test_what_is_shown_twice_is_not_chosen_by_what_is_not_shown(data: bytes, old: str) -> None:
    with pytest.raises(ToolError, match="2 times"):
        replace_once(FileText.read(data), old, "new", "f")


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("\nb", " b", b"a b\r\n"),
        ("\nb", "\n\nb", b"a\r\n\r\nb\r\n"),
        ("a\n", "", b"b\r\n"),
        ("b\r\n", "c", b"a\r\nc"),
    ],
)
def test_two_characters_that_end_a_line_are_one_end(old: str, new: str, after: bytes) -> None:
    file = FileText.read(b"a\r\nb\r\n")
    assert file.encoded(replace_once(file, old, new, "f")[0]) == after


def test_a_carriage_return_tells_which_one_is_meant() -> None:
    file = FileText.read(b"x\r\ny\r\n--\nx\ny\n")
    assert replace_once(file, "x\r\ny", "z", "f")[0] == "z\r\n--\nx\ny\n"
    with pytest.raises(ToolError, match="is not in f"):
        replace_once(FileText.read(b"a\r\nb"), "a\r", "c", "f")
