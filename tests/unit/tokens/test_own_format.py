"""A tool-call format of a user's is tried: it reads what it writes, and raises for nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens import ToolFormat
from agentrl.tokens.formats import FORMATS, Hermes, resolve_format
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.trial import check_format
from agentrl.types import ToolCall

OWN = f"{Path(__file__).parents[3]}/examples/extending/tool_format.py:Brackets"


@pytest.mark.parametrize("name", FORMATS)
def test_the_built_in_ones_would_do(name: str) -> None:
    assert resolve_format(name) is check_format(FORMATS[name], name) is FORMATS[name]


def test_one_s_own_is_found_by_a_reference_or_given() -> None:
    found = resolve_format(OWN)
    assert found.name == "brackets"
    assert resolve_format(found) is found


class Forgets(Hermes):
    """Writes the first call alone."""

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return super().render_calls(calls[:1])


class Falls(Hermes):
    """Raises where a call is cut off."""

    def read_call(self, reader: Reader) -> None:
        if "}" not in reader.text[reader.position :]:
            raise IndexError("no end")
        super().read_call(reader)


class Nameless(ToolFormat):
    """Declares nothing."""


class Other(Hermes):
    """Writes what it does not read."""

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return "<tool_call>look</tool_call>" * len(calls)


class Unwritten(ToolFormat):
    """Writes nothing."""

    name = "unwritten"
    starts = ("<",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Forgets, "but reads 1 calls; read_call has"),
        (Other, "tool format Other wrote 2 calls as '<tool_call>look</tool_call><tool"),
        (Falls, "raised IndexError: no end (tests/unit/tokens/test_own_format.py, line"),
        (Nameless, "tool format Nameless has no `name`; declare it, as ToolFormat says"),
        (Unwritten, "tool format Unwritten raised NotImplementedError"),
        (Hermes(), "tool format Hermes is no subclass of ToolFormat"),
        ("json:dumps", "tool format json:dumps is no subclass of ToolFormat"),
        (OWN.replace("Brackets", "Bracket"), "did you mean Brackets?"),
        ("hermos", "did you mean hermes?"),
    ],
)
def test_a_wrong_one_is_found_before_the_run(given: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_format(given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
