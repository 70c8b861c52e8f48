"""A configuration in the making: `{key: (value, origin)}`, layer over layer, then checked once.

A list of tables (`[[env]]`) is kept as rows until flags have said which of them hold; then each
row's keys stand beside all others, with the row's number: `env.0.digits`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.anchor import PATH, anchor_of, anchored
from agentrl.config.describe import placeholder, refusal, shown
from agentrl.config.flags import Flag, decode, flag_of
from agentrl.config.nearest import nearest
from agentrl.config.plain import as_list, as_mapping, to_plain
from agentrl.config.schema import (
    Config,
    Schema,
    accepts_none,
    is_list_of_texts,
    is_switch,
    schema_of,
)
from agentrl.errors import ConfigError

C = TypeVar("C", bound=Config)
D = TypeVar("D", bound=Config)
DEFAULT = "default"
ParametersOf = Callable[[str], type[Config]]
"""Gives the class of a table row's own parameters from the row's name; may raise ConfigError."""


class Value(NamedTuple):
    """A value as plain data, and where it came from."""

    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """A checked configuration and where each of its values came from.

    `origins` maps every dotted leaf key (`trainer.lr`, `env.0.name`) to "default", a file, a flag
    as it was typed, or the name of a preset.
    """

    config: C
    origins: Mapping[str, str]

    def where(self, key: str) -> str:
        """How a message should name a key: its flag, or its origin and name."""
        origin = self.origins.get(key, DEFAULT)
        return name_key(key, "" if origin == DEFAULT else origin)


def name_key(key: str, origin: str) -> str:
    """How a message names a key: its flag, or its file and name."""
    if origin.startswith("--"):
        return origin
    return f"{origin}: {key}" if origin else key


@dataclass(slots=True)
class Draft(Generic[C]):
    """Layers of values for a class; `prefix` is put before its keys in messages ("env.")."""

    cls: type[C]
    prefix: str = ""
    short: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, ParametersOf] = field(default_factory=dict[str, ParametersOf])
    folders: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """What relative paths of an origin are relative to; of others it is the working folder."""
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    problems: list[str] = field(default_factory=list[str])
    schema: Schema = field(init=False)
    _tables: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])
    """The rows of each list of tables, until they are spread."""
    _rows: dict[str, str] = field(default_factory=dict[str, str])
    """The origin of each row that was spread, such as `env.0`."""
    _alone: dict[str, str] = field(default_factory=dict[str, str])
    """The only rows of tables, whose keys are written without a number."""
    _classes: dict[str, type[Config] | None] = field(default_factory=dict[str, type[Config] | None])
    """The class of a row's own parameters; None where nobody knows it."""

    def __post_init__(self) -> None:
        self.schema = schema_of(self.cls)

    def lay(self, data: Mapping[str, object], origin: str, section: str = "") -> None:
        """Put nested data over what is there."""
        for name, value in data.items():
            key = f"{section}.{name}" if section else name
            if key in self.schema.sections:
                self._lay_section(key, value, origin)
            elif key in self.schema.tables:
                self._lay_tables(key, value, origin)
            elif key in self.schema.leaves:
                self._put(key, value, origin)
            elif self._classes.get(section, self.cls) is not None:
                hint = self._suggest(name, self.schema.children(section), key)
                self._report(key, origin, f"unknown key, {hint}")

    def lay_under(self, data: Mapping[str, object], origin: str) -> None:
        """Put values where there are none, by dotted keys."""
        for key, value in data.items():
            if key not in self.values:
                self._put(key, value, origin)

    def lay_flags(self, flags: Sequence[Flag]) -> None:
        """Put flags over what is there; giving one key twice is a problem."""
        keyed = [(self.short.get(flag.key, flag.key), flag) for flag in flags]
        given: dict[str, str] = {}
        for key, flag in keyed:
            info = self.schema.leaves.get(key)
            if key in given and (info is None or not is_list_of_texts(info)):
                is_table = key in self.schema.tables
                self.problems.append(
                    f"{flag.name}: given twice; write several as [[{key}]] tables in a TOML file"
                    if is_table
                    else f"{flag.name}: given twice (also as {given[key]}); keep one"
                )
            given[key] = flag.name
            if key in self.schema.tables:
                self._select_rows(key, flag)
        self._spread_rows()
        for key, flag in keyed:
            if key not in self.schema.tables:
                self._lay_flag(key, flag)

    def check(self) -> Loaded[C]:
        """Validate everything.

        Raises:
            ConfigError: one line for each thing that is wrong.
        """
        self._spread_rows()
        self._anchor_defaults()
        data: dict[str, object] = {}
        for key, value in self.values.items():
            section, _, name = key.rpartition(".")
            _enter(data, section)[name] = value.value
        for row in reversed(self._rows):  # what is inside of a row before the row
            self._check_row(data, row)
        config = self._validate(self.cls, data)
        if config is None or self.problems:
            raise ConfigError("\n".join(dict.fromkeys(self.problems)))
        origins = {key: value.origin for key, value in self.values.items()}
        return Loaded(config, dict.fromkeys(self.schema.leaves, DEFAULT) | origins)

    def _check_row(self, data: dict[str, object], row: str) -> None:
        """Give a row all its parameters; with the first row, its table becomes a list."""
        given, cls = _enter(data, row), self._classes.get(row)
        if cls is not None:
            own = {name: given[name] for name in schema_of(cls).children("") if name in given}
            checked = self._validate(cls, own, row)
            given |= {} if checked is None else checked.model_dump(mode="json")
        if row.endswith(".0"):
            table = row.removesuffix(".0")
            section, _, name = table.rpartition(".")
            rows = _enter(data, table)
            _enter(data, section)[name] = [rows[str(number)] for number in range(len(rows))]

    def _lay_section(self, key: str, value: object, origin: str) -> None:
        table = as_mapping(value)
        if table is not None:
            self.lay(table, origin, key)
        elif value in (None, "none") and accepts_none(self.schema.sections[key]):
            self._put(key, None, origin)
        else:
            self._report(key, origin, f"got {shown(value)}, expected a table")

    def _lay_tables(self, key: str, value: object, origin: str) -> None:
        items = as_list(value)
        rows = [row for row in map(as_mapping, items or ()) if row is not None]
        if items is None or len(rows) < len(items):
            name = self.prefix + key
            self._report(key, origin, f"got {shown(value)}, expected [[{name}]] tables")
        else:
            self._tables[key] = [Value(row, origin) for row in rows]

    def _select_rows(self, table: str, flag: Flag) -> None:
        """Keep the rows of the name that a flag gives; if there are none, it makes one."""
        if flag.text is None:
            self.problems.append(f"{flag.name}: got no value, expected a name")
            return
        info = schema_of(self.schema.tables[table]).leaves["name"]
        made = Value({"name": flag.text}, flag.name)

        def name_of(row: Value) -> object:
            return self._anchored(info, (as_mapping(row.value) or {}).get("name"), row.origin)

        named = [row for row in self._tables.get(table, []) if name_of(row) == name_of(made)]
        self._tables[table] = named or [made]

    def _spread_rows(self) -> None:
        """Lay the rows beside all other keys, each by its class and that of its parameters."""
        while self._tables:
            table, rows = self._tables.popitem()
            for number, (data, origin) in enumerate(rows):
                row, given = f"{table}.{number}", as_mapping(data) or {}
                self._rows[row] = origin
                if len(rows) == 1:
                    self._alone[row] = table
                self.schema.add(self.schema.tables[table], row)
                if table in self.parameters:
                    if "name" in given:
                        self.lay({"name": given["name"]}, origin, row)
                    cls = self._classes[row] = self._parameters_of(table, row)
                    if cls is not None:
                        self.schema.add(cls, row)
                self.lay(given, origin, row)

    def _parameters_of(self, table: str, row: str) -> type[Config] | None:
        name = self.values.get(f"{row}.name", Value(None, "")).value
        try:
            return self.parameters[table](name) if isinstance(name, str) else None
        except ConfigError as error:
            self.problems.append(str(error))
            return None

    def _put(self, key: str, value: object, origin: str) -> None:
        try:
            info = self.schema.leaves.get(key) or self.schema.sections[key]
            value = self._to_value(info, value, origin)
        except UnicodeEncodeError:
            self._report(key, origin, "got bytes that are not UTF-8, expected text")
            return
        except (TypeError, ValueError):
            kind = type(value).__name__
            wanted = "text, a number, true or false, a list or a table"
            self._report(key, origin, f"got a value of type {kind}, expected {wanted}")
            return
        for other in [k for k in self.values if k.startswith(f"{key}.")]:
            del self.values[other]
        for cut in (key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)):
            self.values.pop(cut, None)
        self.values[key] = Value(value, origin)

    def _to_value(self, info: FieldInfo, value: object, origin: str) -> object:
        """What is stored: plain data, None for the word `none`, absolute paths."""
        value = to_plain(value)
        is_none = value == "none" and accepts_none(info)
        return None if is_none else self._anchored(info, value, origin)

    def _anchored(self, info: FieldInfo, value: object, origin: str) -> object:
        anchor = anchor_of(info)
        folder = self.folders.get(origin) or Path.cwd()
        return value if anchor is None else anchored(value, anchor, folder)

    def _anchor_defaults(self) -> None:
        """Paths by default are relative to the working folder, which a stored file is not in."""
        for key, info in self.schema.leaves.items():
            always_there = key.rpartition(".")[0] in ("", *self._rows)
            is_path = anchor_of(info) == PATH and isinstance(info.default, str | Path)
            if always_there and is_path and str(info.default) and key not in self.values:
                self._put(key, info.default, DEFAULT)

    def _lay_flag(self, key: str, flag: Flag) -> None:
        section = next((t for t in self.schema.tables if key.startswith(f"{t}.")), "")
        if section:
            rows = [row for row in self._rows if row.rpartition(".")[0] == section]
            if len(rows) != 1:
                reason = f"there are {len(rows)} [[{section}]] tables; set it in the file"
                missing = f"no {section} is set; pass {flag_of(section)} NAME too"
                self.problems.append(f"{flag.name}: {reason if rows else missing}")
                return
            key = rows[0] + key.removeprefix(section)
            section = rows[0]
        if key in self.schema.leaves:
            self._put_flag(key, flag)
        elif key in self.schema.sections:
            if flag.text == "none" and accepts_none(self.schema.sections[key]):
                self._put(key, None, flag.name)
                return
            example = flag_of(self._name(f"{key}.{self.schema.children(key)[0]}"))
            self.problems.append(
                f"{flag.name}: is a group of keys; set one of them, such as {example}"
            )
        elif self._classes.get(section, self.cls) is not None:
            known = (self._name(k) for k in self.schema.names if k.startswith(section))
            flags = map(flag_of, (*self.short, *known))
            hint = self._suggest(flag_of(self._name(key)), flags, key, flag_of)
            if not section and not hint.startswith("did"):
                hint = "see --help for all of them"
            self.problems.append(f"{flag.name}: unknown flag, {hint}")

    def _put_flag(self, key: str, flag: Flag) -> None:
        info = self.schema.leaves[key]
        if flag.text is None and not is_switch(info):
            self.problems.append(f"{flag.name}: got no value, expected {placeholder(info)}")
            return
        value = True if flag.text is None else decode(flag.text, info)
        if is_list_of_texts(info):
            before = self.values.get(key)
            kept = as_list(before.value) if before and before.origin.startswith("--") else None
            items = as_list(value)
            value = [*(kept or ()), *([flag.text] if items is None else items)]
        self._put(key, value, flag.name)

    def _validate(self, cls: type[D], data: Mapping[str, object], row: str = "") -> D | None:
        """The values of a class; what is wrong becomes problems."""
        try:
            # As JSON and strictly: text is no number and true is no integer, but a list may be a
            # tuple and a text an enum or a path.
            return cls.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            found: dict[str, list[ErrorDetails]] = {}
            above = tuple(row.split(".")) if row else ()
            for item in error.errors(include_url=False):
                key = self._key_at((*above, *map(str, item["loc"])))
                found.setdefault(key, []).append(item)
            is_whole = not self.problems
            for key, items in found.items():
                self._report_refused(key, items, len(above), is_whole)
            return None

    def _report_refused(
        self, key: str, items: Sequence[ErrorDetails], above: int, is_whole: bool
    ) -> None:
        value = self.values.get(key)
        if items[0]["type"] == "missing" and value is None:
            if is_whole:  # else a key may be missing that was misspelt
                wanted = placeholder(self.schema.leaves[key]) if key in self.schema.leaves else "it"
                what = f"missing, expected {wanted}; set it in the file or by a flag"
                self._report(key, self._origin(key), what)
            return
        got = items[0]["input"] if value is None else value.value
        depth = key.count(".") + 1 - above if key else 0
        self._report(key, self._origin(key), refusal(items, depth, got))

    def _key_at(self, parts: Sequence[str]) -> str:
        """The key that a location is about; it may go on inside of the key's value."""
        keys = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((key for key in keys if key in (*self.schema.names, *self._rows)), "")

    def _origin(self, key: str) -> str:
        """Where a key's value came from, or what is below it, or the row that it is in."""
        if key in self.values:
            return self.values[key].origin
        below = {value.origin for k, value in self.values.items() if k.startswith(f"{key}.")}
        rows = (origin for row, origin in self._rows.items() if f"{key}.".startswith(f"{row}."))
        return below.pop() if len(below) == 1 else next(rows, "")

    def _suggest(
        self, name: str, known: Iterable[str], key: str, spell: Callable[[str], str] = str
    ) -> str:
        """The known name that is near, else the key of the same last name in another section."""
        hint = nearest(name, known)
        last = key.rpartition(".")[2]
        row = next((row for row in self._rows if key.startswith(f"{row}.")), "")
        same = (k for k in self.schema.names if k.startswith(row) and k.endswith(f".{last}"))
        found = None if hint.startswith("did") else next(same, None)
        return f"did you mean {spell(self._name(found))}?" if found else hint

    def _name(self, key: str) -> str:
        """A key as people write it: the only row of a table has no number."""
        for row, table in self._alone.items():
            if f"{key}.".startswith(f"{row}."):
                key = table + key.removeprefix(row)
        return f"{self.prefix}{key}".rstrip(".")

    def _report(self, key: str, origin: str, what: str) -> None:
        where = name_key(self._name(key), origin) if key or self.prefix else ""
        self.problems.append(f"{where}: {what}" if where else what)


def _enter(data: dict[str, object], key: str) -> dict[str, object]:
    """The table at a dotted key, made where it is not there."""
    for name in key.split(".") if key else ():
        data = cast("dict[str, object]", data.setdefault(name, {}))
    return data
