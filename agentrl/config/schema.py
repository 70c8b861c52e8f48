"""A configuration class, taken apart: every leaf with its dotted name and its field."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Config(BaseModel):
    """Frozen and strict about keys; each field has a `Field(description=...)` for `--help`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
    )


@dataclass(frozen=True, slots=True)
class Schema:
    """The keys of a configuration.

    `sections` are the keys of nested classes, `tables` those of lists of classes (`[[env]]`), each
    with its class. Everything else is a leaf.
    """

    leaves: dict[str, FieldInfo] = field(default_factory=dict[str, FieldInfo])
    sections: dict[str, FieldInfo] = field(default_factory=dict[str, FieldInfo])
    tables: dict[str, type[Config]] = field(default_factory=dict[str, type[Config]])

    @property
    def names(self) -> list[str]:
        """Every key that a file or flag may set."""
        return [*self.leaves, *self.sections, *self.tables]

    def children(self, section: str) -> list[str]:
        """The names directly below a section ("" is the root)."""
        start = f"{section}." if section else ""
        below = (name[len(start) :] for name in self.names if name.startswith(start))
        return [name for name in below if name and "." not in name]

    def add(self, cls: type[Config], section: str = "") -> None:
        """Take a class apart below a section; its own sections are followed, tables are not."""
        for attribute, info in cls.model_fields.items():
            name = f"{section}.{info.alias or attribute}".lstrip(".")
            below = _filter_config_classes(union_members(info.annotation))
            items = get_args(info.annotation) if accepts_many(info) else ()
            if below:
                self.sections[name] = info
                self.add(below[0], name)
            elif rows := _filter_config_classes(items):
                self.tables[name] = rows[0]
            else:
                self.leaves[name] = info


def schema_of(cls: type[Config]) -> Schema:
    """The keys of a class."""
    schema = Schema()
    schema.add(cls)
    return schema


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone; metadata is taken off."""
    return tuple(_flatten_union(annotation))


def accepts_none(info: FieldInfo) -> bool:
    """True if the word `none` stands for None at this key."""
    return type(None) in union_members(info.annotation)


def accepts_many(info: FieldInfo) -> bool:
    """True for a list of any length."""
    args = get_args(info.annotation)
    return get_origin(info.annotation) is list or args[1:] == (...,)


def is_switch(info: FieldInfo) -> bool:
    """True for a key whose value may be left out on the command line."""
    return {*union_members(info.annotation)} - {type(None)} == {bool}


def is_list_of_texts(info: FieldInfo) -> bool:
    """True for a key whose flag may be given several times, an item each."""
    return accepts_many(info) and union_members(get_args(info.annotation)[0]) == (str,)


def _flatten_union(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _flatten_union(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _flatten_union(member)
    else:
        yield annotation


def _filter_config_classes(kinds: Iterable[Any]) -> list[type[Config]]:
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)]
