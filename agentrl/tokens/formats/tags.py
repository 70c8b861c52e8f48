"""Calls with one tag for each argument, whose value is text.

A value ends at its end tag, but only where the next argument, the end of the call or the begin of
another follows: an end tag in the midst of a text is part of the text. An argument's tag inside a
value opens a quoted argument, whose end tag is part of the value too, so that a text may quote a
whole call and a value that was never closed does not swallow the next call. A text that holds only
half of that is refused as unclosed: the format cannot say it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agentrl.tokens.formats.base import to_json
from agentrl.tokens.formats.reader import Lost, Reader, Refused
from agentrl.tokens.formats.scan import MAX_CHARS
from agentrl.types import CallErrorReason, Json

MAX_TAGS = 1024
"""Tags of arguments that a value may quote."""


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands around the arguments of a call."""

    argument: tuple[str, ...]
    """Before an argument's name, then behind it up to the value."""
    argument_end: str
    call_end: str
    line: str = ""
    """One of these on each side of a value belongs to the tags."""

    @property
    def all(self) -> tuple[str, ...]:
        """Every tag."""
        return (*self.argument, self.argument_end, self.call_end)

    def write(self, arguments: Mapping[str, Json]) -> str:
        """The arguments as a model writes them, one a line."""
        before, behind = self.argument[0], "\n".join(self.argument[1:])
        texts = {k: v if isinstance(v, str) else to_json(v) for k, v in arguments.items()}
        return "".join(
            f"{before}{key}{behind}{self.line}{text}{self.line}{self.argument_end}\n"
            for key, text in texts.items()
        )

    def read(self, reader: Reader, name: str) -> dict[str, str]:
        """The arguments of the call of `name`, up to its end. Raises Lost or Refused."""
        texts: dict[str, str] = {}
        twice: str | None = None
        reader.skip_space()
        while not reader.take(self.call_end):
            key = self._read_argument_name(reader)
            twice = key if key in texts else twice
            texts[key] = self._read_argument_value(reader)
            reader.skip_space()
        if twice is not None:
            message = f"{name}: the argument {twice[:60]!r} is given twice"
            raise Refused(CallErrorReason.MALFORMED, message, name)
        return texts

    def attempt(self, reader: Reader, begin: str, stops: Sequence[str]) -> bool:
        """Read one of several calls, which `begin` and its name announce; as `Reader.attempt`."""
        step = partial(self._add_tagged_call_to_reader, reader, begin)
        return reader.attempt(step, ends=(self.call_end,), starts=(begin, *stops))

    def _add_tagged_call_to_reader(self, reader: Reader, begin: str) -> None:
        reader.expect(begin, "at the begin of a call")
        name = name_before(reader, '">')
        reader.add_texts(name, self.read(reader, name))

    def _read_argument_name(self, reader: Reader) -> str:
        before, behind, *rest = self.argument
        if not reader.take(before):
            message = f"expected {before} or {self.call_end}"
            raise Lost("unclosed" if reader.at_end else "malformed", message)
        key = name_before(reader, behind)
        for tag in rest:
            reader.skip_space()
            reader.expect(tag, "behind the argument's name")
        return key

    def _read_argument_value(self, reader: Reader) -> str:
        begin, opened = reader.position, 1
        tags = (self.argument[0], self.argument_end)
        place, tag = reader.next(tags)
        for _ in range(MAX_TAGS):
            if not tag or place - begin > MAX_CHARS:
                break
            reader.position = place + len(tag)
            opened += 1 if tag == self.argument[0] else -1
            if opened <= 0 and self._try_skip_space_to_argument_end(reader):
                return reader.text[begin:place].removeprefix(self.line).removesuffix(self.line)
            place, tag = reader.next(tags)
        reader.position = begin
        if not tag:
            raise Lost("unclosed", f"an argument has no {self.argument_end}")
        message = f"an argument is longer than {MAX_CHARS} characters or quotes {MAX_TAGS} tags"
        raise Lost("too_large", message)

    def _try_skip_space_to_argument_end(self, reader: Reader) -> bool:
        """True, behind the space, if the next argument or the end of a call or list is here."""
        position = reader.position
        reader.skip_space()
        if reader.at(self.argument[0]) or reader.at(self.call_end) or reader.at_stop:
            return True
        reader.position = position
        return False


def name_before(reader: Reader, marker: str) -> str:
    """The name of a tool or an argument before `marker`; moves behind it. Raises Lost."""
    begin, name = reader.position, reader.take_until(marker, "a name").strip()
    if not name or set(name) & set("<>\n"):
        reader.position = begin
        raise Lost("malformed", f"expected a name before {marker}")
    return name
