"""One resolver for everything that users bring, and what each kind of mistake is answered with."""

import functools
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from agentrl.config import seams
from agentrl.config.references import load_reference
from agentrl.config.seams import Seam, check_function, instance_of, reference_of
from agentrl.errors import ConfigError

SEAM = Seam("widget", {"dict": dict, "decoder": "json.decoder:JSONDecoder"}, "agentrl.widgets")


def message(work: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_reference_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    def installed(*, group: str) -> EntryPoints:
        entry = EntryPoint("mine", "json:JSONEncoder", group)
        return EntryPoints([entry] if group == "agentrl.widgets" else [])

    monkeypatch.setattr(seams, "entry_points", installed)
    assert SEAM.find("dict") is dict
    assert SEAM.find("decoder") is SEAM.find("json.decoder:JSONDecoder") is json.JSONDecoder
    assert SEAM.find("mine") is json.JSONEncoder
    assert SEAM.find(json) is json


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("dcit", "widget dcit is unknown (your own is written pkg.mod:Name or path/file.py:Name),"),
        ("dcit", "did you mean dict?"),
        ("", "there is decoder, dict"),
        ("json:dmups", "widget json:dmups does not exist: json has no dmups, did you mean dumps?"),
        ("nowhere.py:x", "widget nowhere.py:x cannot be imported: there is no file"),
        ("<lambda>", "widget <lambda> was an object in Python that no reference finds: give it"),
    ],
)
def test_what_is_not_there(ref: str, said: str) -> None:
    assert said in message(lambda: SEAM.find(ref))


def top(batch: object) -> object:
    return batch


class Outer:
    class Inner:
        """Found by a dotted name."""


def test_an_object_is_written_as_what_finds_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Made:\n    def __call__(self): ...\n")
    made = load_reference(f"{file}:Made", "widget")
    try:
        assert reference_of(made) == f"{file}:Made"
        for found in (top, Outer.Inner, functools.partial):
            assert load_reference(reference_of(found), "widget") is found
        assert isinstance(made, type)
        for lost, text in (
            (made(), "<Made>"),
            (lambda: None, "<lambda>"),
            (functools.partial(top), "<partial>"),
            (7, "<int>"),
        ):
            assert reference_of(lost) == text
    finally:
        for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", "") == str(file)]:
            del sys.modules[name]


def test_one_that_was_replaced_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def shadow(batch: object) -> object:
        return batch

    shadow.__qualname__, shadow.__module__ = top.__qualname__, top.__module__
    assert reference_of(shadow) == "<top>"
    monkeypatch.setattr(top, "__module__", "__main__")
    assert reference_of(top) == "<top>"  # a script would begin anew if it were imported


def test_a_class_is_made_without_arguments() -> None:
    class Needs:
        def __init__(self, path: str) -> None: ...

    assert isinstance(instance_of(Outer.Inner, "widget x"), Outer.Inner)
    assert instance_of(7, "widget x") == 7
    assert "widget x is a class that needs arguments (missing a required argument: 'path')" in (
        message(lambda: instance_of(Needs, "widget x"))
    )


async def late(batch: object) -> None: ...


class LateCall:
    async def __call__(self, batch: object) -> None: ...


def of_none() -> None: ...


def of_two(batch: object, rows: object) -> None: ...


def of_any(*batches: object, rest: int = 1) -> None: ...


def with_seed(batch: object, *, seed: int) -> None: ...


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (7, "widget x is of type int, expected f(batch)"),
        (late, "widget x is async; write it as a plain function (batch)"),
        (LateCall(), "widget x is async"),
        (functools.partial(late), "widget x is async"),
        (of_none, "widget x takes () -> None, expected (batch)"),
        (of_two, "expected (batch)"),
        (with_seed, "expected (batch)"),
    ],
)
def test_what_cannot_be_called(found: object, said: str) -> None:
    assert said in message(lambda: check_function(found, "widget x", "batch"))


@pytest.mark.parametrize("found", [top, of_any, functools.partial(of_two, rows=1), max])
def test_what_can_be_called(found: object) -> None:
    check_function(found, "widget x", "batch")


def test_keywords_are_a_part_of_it() -> None:
    check_function(with_seed, "widget x", "batch", keywords=("seed",))
    assert "expected (batch, *, rate)" in message(
        lambda: check_function(with_seed, "widget x", "batch", keywords=("rate",))
    )
