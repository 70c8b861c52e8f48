"""A configuration in the making: `{key: (value, origin)}`, layer over layer, then checked once.

A list of tables (`[[env]]`) is kept until flags have said which of its rows hold; then each row is
a draft of its own, by the class of its table and that of its parameters.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.anchor import PATH, anchor_of, anchor_value
from agentrl.config.describe import explain_refusal, placeholder, shown
from agentrl.config.flags import Flag, decode_text, flag_of
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
    source: str = ""
    """Where a key would be that is missing."""
    short: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, ParametersOf] = field(default_factory=dict[str, ParametersOf])
    folders: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """What relative paths of an origin are relative to; of others it is the working folder."""
    knows_all: bool = True
    """False for a row whose parameters nobody knows: then no key is unknown."""
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    rows: dict[str, "list[Draft[Config]]"] = field(default_factory=dict[str, "list[Draft[Config]]"])
    problems: list[str] = field(default_factory=list[str])
    schema: Schema = field(init=False)
    _tables: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])
    """The data of rows, until flags have said which of them hold."""

    def __post_init__(self) -> None:
        self.schema = schema_of(self.cls)

    @property
    def given(self) -> Mapping[str, Value]:
        """Every value by its dotted key; those of rows with the row's number, as `env.0.name`."""
        rows = ((t, i, row) for t, rows in self.rows.items() for i, row in enumerate(rows))
        below = {f"{t}.{i}.{key}": value for t, i, row in rows for key, value in row.given.items()}
        return {**self.values, **below}

    def lay(self, data: Mapping[str, object], origin: str, section: str = "") -> None:
        """Put nested data over what is there."""
        for name, value in data.items():
            key = f"{section}.{name}" if section else name
            if key in self.schema.sections:
                self._put_section_value(key, value, origin)
            elif key in self.schema.tables:
                self._put_table_rows(key, value, origin)
            elif key in self.schema.leaves:
                self._put_plain_value(key, value, origin)
            elif self.knows_all:
                hint = self._suggest_key_name(name, self.schema.children(section), key)
                self._note_problem(key, origin, f"unknown key, {hint}")

    def lay_under(self, data: Mapping[str, object], origin: str, over: Set[str]) -> None:
        """Put values where there are none, or over those of some keys; by dotted keys."""
        for key, value in data.items():
            if key not in self.values or key in over:
                self._put_plain_value(key, value, origin)

    def lay_flags(self, flags: Sequence[Flag]) -> None:
        """Put flags over what is there; giving one key twice is a problem."""
        keyed = [replace(flag, key=self.short.get(flag.key, flag.key)) for flag in flags]
        given: dict[str, str] = {}
        below: dict[str, list[Flag]] = {}
        for flag in keyed:
            info = self.schema.leaves.get(flag.key)
            if flag.key in given and (info is None or not is_list_of_texts(info)):
                todo = f"given twice (also as {given[flag.key]}); keep one"
                if flag.key in self.schema.tables:
                    todo = f"given twice; write several as [[{flag.key}]] tables in a TOML file"
                self.problems.append(f"{flag.name}: {todo}")
            given[flag.key] = flag.name
            table = next((t for t in self.schema.tables if f"{flag.key}.".startswith(f"{t}.")), "")
            if flag.key == table:
                self._select_table_rows_named_by_flag(table, flag)
            elif table:
                own = replace(flag, key=flag.key.removeprefix(f"{table}."))
                below.setdefault(table, []).append(own)
            else:
                self._apply_flag_or_note_problem(flag)
        self._make_drafts_of_table_rows()
        for table, own_flags in below.items():
            self._apply_flags_to_only_table_row(table, own_flags)

    def check(self) -> Loaded[C]:
        """Validate everything.

        Raises:
            ConfigError: one line for each thing that is wrong.
        """
        self._make_drafts_of_table_rows()
        self._make_default_paths_absolute()
        data: dict[str, object] = {}
        origins = dict.fromkeys(self.schema.leaves, DEFAULT)
        for key, value in self.values.items():
            _find_or_make_table_of_key(data, key)[key.rpartition(".")[2]] = value.value
            origins[key] = value.origin
        for table, rows in self.rows.items():
            checked = [self._check_table_row_or_note_problems(row) for row in rows]
            own = self.schema.tables[table].model_fields
            dumped = [row.config.model_dump(mode="json") for row in checked if row]
            _find_or_make_table_of_key(data, table)[table.rpartition(".")[2]] = [
                {name: row[name] for name in own} | row for row in dumped
            ]
            for number, row in enumerate(checked):
                below = row.origins.items() if row else ()
                origins |= {f"{table}.{number}.{key}": origin for key, origin in below}
        config = self._build_config_or_note_problems(data)
        if config is None or self.problems:
            raise ConfigError("\n".join(dict.fromkeys(self.problems)))
        return Loaded(config, origins)

    def _check_table_row_or_note_problems(self, row: "Draft[Config]") -> Loaded[Config] | None:
        try:
            return row.check()
        except ConfigError as error:
            self.problems += str(error).splitlines()
            return None

    def _put_section_value(self, key: str, value: object, origin: str) -> None:
        table = as_mapping(value)
        if table is not None:
            self.lay(table, origin, key)
        elif value in (None, "none") and accepts_none(self.schema.sections[key]):
            self._put_plain_value(key, None, origin)
        else:
            self._note_problem(key, origin, f"got {shown(value)}, expected a table")

    def _put_table_rows(self, key: str, value: object, origin: str) -> None:
        items = as_list(value)
        rows = [row for row in map(as_mapping, items or ()) if row is not None]
        if items is None or len(rows) < len(items):
            wanted = f"expected [[{self._prefix_key(key)}]] tables"
            self._note_problem(key, origin, f"got {shown(value)}, {wanted}")
        else:
            self._tables[key] = [Value(row, origin) for row in rows]

    def _select_table_rows_named_by_flag(self, table: str, flag: Flag) -> None:
        """Keep the rows of the name that a flag gives; if there are none, it makes one."""
        if flag.text is None:
            self.problems.append(f"{flag.name}: got no value, expected a name")
            return
        made = Value({"name": flag.text}, flag.name)
        wanted = self._read_name_of_table_row(table, made)
        named = [
            row
            for row in self._tables.get(table, [])
            if self._read_name_of_table_row(table, row) == wanted
        ]
        self._tables[table] = named or [made]

    def _read_name_of_table_row(self, table: str, row: Value) -> object:
        name = (as_mapping(row.value) or {}).get("name")
        info = self.schema.tables[table].model_fields.get("name")
        return name if info is None else self._make_value_absolute_by_anchor(info, name, row.origin)

    def _make_drafts_of_table_rows(self) -> None:
        while self._tables:
            table, rows = self._tables.popitem()
            prefixes = [f"{table}.{i}." for i in range(len(rows))] if rows[1:] else [f"{table}."]
            made = zip(rows, prefixes, strict=False)
            self.rows[table] = [
                self._make_draft_of_table_row(table, row, prefix) for row, prefix in made
            ]

    def _make_draft_of_table_row(self, table: str, row: Value, prefix: str) -> "Draft[Config]":
        cls, name = self.schema.tables[table], self._read_name_of_table_row(table, row)
        knows_all = table not in self.parameters
        if not knows_all and isinstance(name, str):
            try:
                # Its parameters stand beside its own fields.
                fields: Any = {n: (info.annotation, info) for n, info in cls.model_fields.items()}
                cls = create_model(cls.__name__, __base__=self.parameters[table](name), **fields)
                knows_all = True
            except ConfigError as error:
                self.problems.append(str(error))
        draft = Draft(cls, self.prefix + prefix, row.origin, folders=self.folders)
        draft.schema = schema_of(self.schema.tables[table])  # its own keys stand first
        draft.schema.add(cls)
        draft.knows_all = knows_all
        draft.lay(as_mapping(row.value) or {}, row.origin)
        return draft

    def _apply_flags_to_only_table_row(self, table: str, flags: Sequence[Flag]) -> None:
        rows = self.rows.get(table, [])
        if len(rows) == 1:
            rows[0].lay_flags(flags)
            return
        reason = f"no {table} is set; pass {flag_of(table)} NAME too"
        if rows:
            reason = f"there are {len(rows)} [[{table}]] tables; set it in the file"
        self.problems += [f"{flag.name}: {reason}" for flag in flags]

    def _put_plain_value(self, key: str, value: object, origin: str) -> None:
        info = self.schema.leaves.get(key) or self.schema.sections[key]
        try:
            value = to_plain(value)
        except UnicodeEncodeError:
            self._note_problem(key, origin, "got bytes that are not UTF-8, expected text")
            return
        except (TypeError, ValueError):
            kind = type(value).__name__
            wanted = "text, a number, true or false, a list or a table"
            self._note_problem(key, origin, f"got a value of type {kind}, expected {wanted}")
            return
        for other in [k for k in self.values if k.startswith(f"{key}.")]:
            del self.values[other]
        for cut in (key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)):
            self.values.pop(cut, None)
        is_none = value == "none" and accepts_none(info)
        stored = None if is_none else self._make_value_absolute_by_anchor(info, value, origin)
        self.values[key] = Value(stored, origin)

    def _make_value_absolute_by_anchor(self, info: FieldInfo, value: object, origin: str) -> object:
        anchor = anchor_of(info)
        folder = self.folders.get(origin) or Path.cwd()
        return value if anchor is None else anchor_value(value, anchor, folder)

    def _make_default_paths_absolute(self) -> None:
        """Paths by default are relative to the working folder, which a stored file is not in."""
        for key, info in self.schema.leaves.items():
            is_path = anchor_of(info) == PATH and isinstance(info.default, str | Path)
            if "." not in key and is_path and str(info.default) and key not in self.values:
                self._put_plain_value(key, info.default, DEFAULT)

    def _apply_flag_or_note_problem(self, flag: Flag) -> None:
        key = flag.key
        if key in self.schema.leaves:
            self._put_decoded_flag(flag)
        elif key in self.schema.sections:
            if flag.text == "none" and accepts_none(self.schema.sections[key]):
                self._put_plain_value(key, None, flag.name)
                return
            example = flag_of(self._prefix_key(f"{key}.{self.schema.children(key)[0]}"))
            self.problems.append(
                f"{flag.name}: is a group of keys; set one of them, such as {example}"
            )
        elif self.knows_all:
            known = (flag_of(k) for k in (*self.short, *map(self._prefix_key, self.schema.names)))
            hint = self._suggest_key_name(flag_of(self._prefix_key(key)), known, key, flag_of)
            if not self.prefix and not hint.startswith("did"):
                hint = "see --help for all of them"
            self.problems.append(f"{flag.name}: unknown flag, {hint}")

    def _put_decoded_flag(self, flag: Flag) -> None:
        info = self.schema.leaves[flag.key]
        if flag.text is None and not is_switch(info):
            self.problems.append(f"{flag.name}: got no value, expected {placeholder(info)}")
            return
        value = True if flag.text is None else decode_text(flag.text, info)
        if is_list_of_texts(info):
            before = self.values.get(flag.key)
            kept = as_list(before.value) if before and before.origin.startswith("--") else None
            items = as_list(value)
            value = [*(kept or ()), *([flag.text] if items is None else items)]
        self._put_plain_value(flag.key, value, flag.name)

    def _build_config_or_note_problems(self, data: Mapping[str, object]) -> C | None:
        try:
            # As JSON and strictly: text is no number and true is no integer, but a list may be a
            # tuple and a text an enum or a path.
            return self.cls.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            found: dict[str, list[ErrorDetails]] = {}
            for item in error.errors(include_url=False):
                # A location may go on inside of a key's value.
                parts = [str(part) for part in item["loc"]]
                keys = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
                key = next((key for key in keys if key in self.schema.names), "")
                found.setdefault(key, []).append(item)
            is_whole = not self.problems
            for key, items in found.items():
                self._note_refused_key(key, items, is_whole)
            return None

    def _note_refused_key(self, key: str, items: Sequence[ErrorDetails], is_whole: bool) -> None:
        value = self.values.get(key)
        if value is not None:
            origin = value.origin
        else:
            below = {v.origin for k, v in self.values.items() if k.startswith(f"{key}.")}
            origin = below.pop() if len(below) == 1 else self.source
        if items[0]["type"] == "missing" and value is None:
            if is_whole:  # else a key may be missing that was misspelt
                wanted = placeholder(self.schema.leaves[key]) if key in self.schema.leaves else "it"
                what = f"missing, expected {wanted}; set it in the file or by a flag"
                self._note_problem(key, origin, what)
            return
        got = items[0]["input"] if value is None else value.value
        self._note_problem(key, origin, explain_refusal(items, key.count(".") + bool(key), got))

    def _suggest_key_name(
        self, name: str, known: Iterable[str], key: str, spell: Callable[[str], str] = str
    ) -> str:
        """The known name that is near, else the key of the same last name in another section."""
        hint = nearest(name, known)
        last = key.rpartition(".")[2]
        same = (k for k in self.schema.names if k.endswith(f".{last}"))
        found = None if hint.startswith("did") else next(same, None)
        return f"did you mean {spell(self._prefix_key(found))}?" if found else hint

    def _prefix_key(self, key: str) -> str:
        return f"{self.prefix}{key}".rstrip(".")

    def _note_problem(self, key: str, origin: str, what: str) -> None:
        where = name_key(self._prefix_key(key), origin) if key or self.prefix else ""
        self.problems.append(f"{where}: {what}" if where else what)


def _find_or_make_table_of_key(data: dict[str, object], key: str) -> dict[str, object]:
    """The table that a dotted key is in, made where it is not there."""
    for name in key.split(".")[:-1]:
        data = cast("dict[str, object]", data.setdefault(name, {}))
    return data
