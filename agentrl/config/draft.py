"""A configuration in the making: values from several layers, each with its origin, then checked.

defaults ─┐
run.toml ─┼─> values by key, rows of [[tables]] ──check()──> Checked(config, origins)
flags ────┘   (a later layer wins)                           or problems, one line each
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar, cast

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentrl.config.anchor import PATH, anchor_of, anchored
from agentrl.config.base import Config
from agentrl.config.describe import accepts_only_bool, expected, shown
from agentrl.config.flags import Flag, check_text, fits, flag_of, guess, value_of
from agentrl.config.nearest import nearest
from agentrl.config.plain import as_list, as_mapping
from agentrl.config.problems import located, sentence
from agentrl.config.schema import Schema, may_be_none, schema_of
from agentrl.errors import ConfigError

C = TypeVar("C", bound=Config)
DEFAULT = "default"
ParametersOf = Callable[[str], type[Config]]
"""Gives the class of a table row's own parameters from the row's name; may raise ConfigError."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value and where it came from."""

    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One table of a list of tables: its data, their origin, and the flags on top."""

    data: Mapping[str, object]
    origin: str
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedField(Generic[C]):
    """A valid configuration and the origin of every leaf."""

    config: C
    origins: Mapping[str, str]


@dataclass(slots=True)
class Draft(Generic[C]):
    """Layers of values for a class; `prefix` is put before its keys in messages ("env.").

    `source` is where a key would be that is missing.
    """

    cls: type[C]
    prefix: str = ""
    source: str = ""
    short: Mapping[str, str] = field(default_factory=dict[str, str])
    parameters: Mapping[str, ParametersOf] = field(default_factory=dict[str, ParametersOf])
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    rows: dict[str, list[FieldRow]] = field(default_factory=dict[str, list[FieldRow]])
    problems: list[str] = field(default_factory=list[str])
    folders: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """What relative paths of an origin are relative to; of others it is the working folder."""
    schema: Schema = field(init=False)

    def __post_init__(self) -> None:
        self.schema = schema_of(self.cls)

    def add_mapping(self, data: Mapping[str, object], origin: str, section: str = "") -> None:
        """Lay nested data over what is there."""
        for name, value in data.items():
            key = f"{section}.{name}" if section else name
            if key in self.schema.sections:
                self._add_section(key, value, origin)
            elif key in self.schema.tables:
                self._add_tables(key, value, origin)
            elif key in self.schema.leaves:
                self._put(key, value, origin)
            else:
                self._report_unknown(key, section, origin)

    def add_flags(self, flags: Sequence[Flag]) -> None:
        """Lay flags over what is there; giving one key twice is a problem."""
        flags = [replace(flag, key=self.short.get(flag.key, flag.key)) for flag in flags]
        seen: dict[str, str] = {}
        for flag in flags:
            if flag.key in seen and not self._is_list_of_texts(flag.key):
                self._problem(flag.name, self._twice(flag.key, seen[flag.key]))
            seen[flag.key] = flag.name
        # Tables first, so that --env.KEY finds its table wherever --env stands.
        for flag in sorted(flags, key=lambda f: f.key not in self.schema.tables):
            self._add_flag(flag)

    def _twice(self, key: str, before: str) -> str:
        if key in self.schema.tables:
            return f"given twice; write several as [[{key}]] tables in a TOML file"
        return f"given twice (also as {before}); keep one"

    def check(self) -> CheckedField[C] | None:
        """Validate; None if there are `problems`."""
        self._anchor_defaults()
        origins = dict.fromkeys(self.schema.leaves, DEFAULT)
        origins |= {key: value.origin for key, value in self.values.items()}
        data = _nested({key: value.value for key, value in self.values.items()})
        for key, value in self.values.items():
            self._check_leaf(key, value.value)
        for key, rows in self.rows.items():
            data[key] = [self._row(key, i, row, origins) for i, row in enumerate(rows)]
        config = None if self.problems else self._validated(data)
        return None if config is None else CheckedField(config, origins)

    def _anchor_defaults(self) -> None:
        """Paths by default are relative to the working folder, which a stored file is not in."""
        for key, leaf in self.schema.leaves.items():
            path = anchored(leaf.default, PATH, Path.cwd()) if anchor_of(leaf) == PATH else ""
            if path and isinstance(path, str) and "." not in key:
                self.values.setdefault(key, Value(path, DEFAULT))

    def where(self, key: str) -> str:
        """How messages name a key: its flag, or its file and name."""
        value = self.values.get(key)
        below = {v.origin for k, v in self.values.items() if k.startswith(f"{key}.")}
        origin = below.pop() if len(below) == 1 else self.source
        origin = origin if value is None else value.origin
        if origin.startswith("--"):
            return origin
        return f"{origin}: {self.prefix}{key}" if origin else self.prefix + key

    def _add_section(self, key: str, value: object, origin: str) -> None:
        table = as_mapping(value)
        if table is not None:
            self.add_mapping(table, origin, key)
        elif value in (None, "none") and may_be_none(self.schema.sections[key]):
            self._put(key, None, origin)
        else:
            self._problem(f"{origin}: {self.prefix}{key}", f"got {shown(value)}, expected a table")

    def _add_tables(self, key: str, value: object, origin: str) -> None:
        items = as_list(value)
        tables = [as_mapping(item) for item in items or ()]
        if items is None or None in tables:
            name = self.prefix + key
            self._problem(f"{origin}: {name}", f"got {shown(value)}, expected [[{name}]] tables")
            return
        self.rows[key] = [FieldRow(table, origin) for table in tables if table is not None]

    def _put(self, key: str, value: object, origin: str) -> None:
        field_info = self.schema.leaves.get(key) or self.schema.sections[key]
        if value == "none" and may_be_none(field_info):
            value = None
        value = self._anchored(field_info, value, origin)
        for other in [k for k in self.values if k.startswith(f"{key}.")]:
            del self.values[other]
        for cut in (key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)):
            self.values.pop(cut, None)
        self.values[key] = Value(value, origin)

    def _anchored(self, field_info: FieldInfo, value: object, origin: str) -> object:
        anchor = anchor_of(field_info)
        folder = self.folders.get(origin) or Path.cwd()
        return value if anchor is None else anchored(value, anchor, folder)

    def _add_flag(self, flag: Flag) -> None:
        table = next((t for t in self.schema.tables if flag.key.startswith(f"{t}.")), None)
        try:
            check_text(flag)
            if flag.key in self.schema.leaves:
                self._put(flag.key, self._flag_value(flag), flag.name)
            elif flag.key in self.schema.tables:
                self._select_row(flag)
            elif table:
                self._add_to_row(table, flag)
            elif flag.key in self.schema.sections:
                self._section_flag(flag)
            else:
                self._unknown_flag(flag)
        except ConfigError as error:
            self.problems.append(str(error))

    def _flag_value(self, flag: Flag) -> object:
        field_info = self.schema.leaves[flag.key]
        if flag.text is not None:
            value = value_of(flag.text, field_info)
            if not self._is_list_of_texts(flag.key):
                return value
            before = self.values.get(flag.key)
            kept = as_list(before.value) if before and before.origin == flag.name else None
            return [*(kept or ()), *(as_list(value) or [flag.text])]
        if accepts_only_bool(field_info.annotation):
            return True
        raise ConfigError(f"{flag.name}: got no value, expected {expected(field_info)}")

    def _is_list_of_texts(self, key: str) -> bool:
        """True for a key whose flag may be given several times, an item each."""
        leaf = self.schema.leaves.get(key)
        return leaf is not None and anchor_of(leaf) is not None and fits([""], leaf)

    def _section_flag(self, flag: Flag) -> None:
        if flag.text == "none" and may_be_none(self.schema.sections[flag.key]):
            self._put(flag.key, None, flag.name)
            return
        example = flag_of(f"{flag.key}.{self.schema.children(flag.key)[0]}")
        raise ConfigError(f"{flag.name}: is a group of keys; set one of them, such as {example}")

    def _select_row(self, flag: Flag) -> None:
        if flag.text is None:
            raise ConfigError(f"{flag.name}: got no value, expected a name")
        name = schema_of(self.schema.tables[flag.key]).leaves["name"]
        wanted = self._anchored(name, flag.text, flag.name)
        named = [
            row
            for row in self.rows.get(flag.key, [])
            if self._anchored(name, row.data.get("name"), row.origin) == wanted
        ]
        self.rows[flag.key] = named or [FieldRow({"name": flag.text}, flag.name)]

    def _add_to_row(self, table: str, flag: Flag) -> None:
        rows = self.rows.get(table, [])
        if len(rows) != 1:
            reason = f"there are {len(rows)} [[{table}]] tables" if rows else f"no {table} is set"
            todo = "set it in the file" if rows else f"pass {flag_of(table)} NAME too"
            raise ConfigError(f"{flag.name}: {reason}; {todo}")
        key = flag.key.removeprefix(f"{table}.")
        rows[0] = replace(rows[0], flags=(*rows[0].flags, replace(flag, key=key)))

    def _row(
        self, table: str, index: int, row: FieldRow, origins: dict[str, str]
    ) -> Mapping[str, object]:
        """Check one table row: the fields of its class, then its own parameters."""
        cls = self.schema.tables[table]
        many = len(self.rows[table]) > 1
        prefix = f"{self.prefix}{table}.{index}." if many else f"{self.prefix}{table}."
        own = schema_of(cls).children("")
        entry = Draft(cls, prefix, row.origin, folders=self.folders)
        extra: dict[str, object] = {}
        open_ended = cls.model_config.get("extra") == "allow"
        for name, value in row.data.items():
            if name in own or not open_ended:
                entry.add_mapping({name: value}, row.origin)
            else:
                extra[name] = value
        entry.add_flags([f for f in row.flags if f.key in own or not open_ended])
        flags = [f for f in row.flags if f.key not in own and open_ended]
        checked = entry.check()
        self.problems += entry.problems
        if checked is None:
            return {}
        own_row = FieldRow(extra, row.origin, tuple(flags))
        data, more = self._parameters(table, checked.config, prefix, own_row)
        found = {**checked.origins, **more}
        origins |= {f"{table}.{index}.{name}": origin for name, origin in found.items()}
        return {**checked.config.model_dump(mode="json"), **data}

    def _parameters(
        self, table: str, entry: Config, prefix: str, row: FieldRow
    ) -> tuple[Mapping[str, object], Mapping[str, str]]:
        """The row's own parameters, by their class where one is known, and their origins."""
        if table not in self.parameters:
            guessed = {f.key: True if f.text is None else guess(f.text) for f in row.flags}
            data = {**row.data, **guessed}
            return data, dict.fromkeys(row.data, row.origin) | {f.key: f.name for f in row.flags}
        name = str(getattr(entry, "name", ""))
        try:
            cls = self.parameters[table](name)
        except ConfigError as error:
            self.problems.append(str(error))
            return {}, {}
        draft = Draft(cls, prefix, row.origin, folders=self.folders)
        draft.add_mapping(row.data, row.origin)
        draft.add_flags(row.flags)
        checked = draft.check()
        self.problems += draft.problems
        return (checked.config.model_dump(mode="json"), checked.origins) if checked else ({}, {})

    def _check_leaf(self, key: str, value: object) -> None:
        leaf = self.schema.leaves.get(key)
        if leaf is not None and not fits(value, leaf):
            self._problem(self.where(key), f"got {shown(value)}, expected {expected(leaf, value)}")

    def _validated(self, data: Mapping[str, object]) -> C | None:
        try:
            return self.cls.model_validate(data)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                key, leaf = located(self.schema, item["loc"])
                value = self.values.get(key)
                got = item["input"] if value is None else value.value
                self.problems.append(sentence(item, self.where(key), leaf, got))
            return None

    def _report_unknown(self, key: str, section: str, origin: str) -> None:
        where = f"{origin}: {self.prefix}{key}" if origin else self.prefix + key
        hint = nearest(key.rpartition(".")[2], self.schema.children(section))
        if not hint.startswith("did") and (elsewhere := self._elsewhere(key)):
            hint = f"did you mean {self.prefix}{elsewhere}?"
        self._problem(where, f"unknown key, {hint}")

    def _unknown_flag(self, flag: Flag) -> None:
        names = [flag_of(self.prefix + key) for key in (*self.short, *self.schema.names)]
        hint = nearest(flag_of(self.prefix + flag.key), names)
        if not hint.startswith("did") and (elsewhere := self._elsewhere(flag.key)):
            hint = f"did you mean {flag_of(self.prefix + elsewhere)}?"
        elif not hint.startswith("did") and not self.prefix:
            hint = "see --help for all of them"
        raise ConfigError(f"{flag.name}: unknown flag, {hint}")

    def _elsewhere(self, key: str) -> str | None:
        """A key of the same last name in another section."""
        name = key.rpartition(".")[2]
        return next((k for k in self.schema.names if k.endswith(f".{name}")), None)

    def _problem(self, where: str, what: str) -> None:
        self.problems.append(f"{where}: {what}")


def _nested(flat: Mapping[str, object]) -> dict[str, object]:
    nested: dict[str, object] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        at = nested
        for section in sections:
            at = cast("dict[str, object]", at.setdefault(section, {}))
        at[name] = value
    return nested
