"""The keys of a configuration tree: every leaf with its dotted name, its field and its default."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from agentrl.config.base import Config
from agentrl.config.describe import accepts_none, members


@dataclass(frozen=True, slots=True)
class Schema:
    """A configuration class, taken apart.

    `sections` are the keys of nested classes, `tables` those of lists of classes (`[[env]]`), each
    with its class. Everything else is a leaf.
    """

    cls: type[Config]
    leaves: Mapping[str, FieldInfo]
    sections: Mapping[str, FieldInfo]
    tables: Mapping[str, type[Config]]

    @property
    def names(self) -> list[str]:
        """Every key that a file or flag may set."""
        return [*self.leaves, *self.sections, *self.tables]

    def children(self, prefix: str) -> list[str]:
        """The names directly below a section ("" is the root)."""
        start = f"{prefix}." if prefix else ""
        below = (name[len(start) :] for name in self.names if name.startswith(start))
        return [name for name in below if name and "." not in name]


def schema_of(cls: type[Config]) -> Schema:
    """Take a class apart; sections are followed, tables are not."""
    leaves: dict[str, FieldInfo] = {}
    sections: dict[str, FieldInfo] = {}
    tables: dict[str, type[Config]] = {}
    for name, field in _walk(cls, ""):
        if section_class(field.annotation):
            sections[name] = field
        elif table := table_class(field.annotation):
            tables[name] = table
        else:
            leaves[name] = field
    return Schema(cls, leaves, sections, tables)


def section_class(annotation: Any) -> type[Config] | None:
    """The class of a nested section (`X` or `X | None`), if the annotation is one."""
    classes = [m for m in members(annotation) if m is not type(None)]
    return classes[0] if len(classes) == 1 and _is_config(classes[0]) else None


def table_class(annotation: Any) -> type[Config] | None:
    """The class of the items of a list of sections, if the annotation is one."""
    args = get_args(annotation)
    if get_origin(annotation) in (tuple, list) and args and _is_config(args[0]):
        item: type[Config] = args[0]
        return item
    return None


def may_be_none(field: FieldInfo) -> bool:
    """True if the word `none` stands for None at this key."""
    return accepts_none(field.annotation)


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Config)


def _walk(cls: type[Config], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for attribute, field in cls.model_fields.items():
        name = field.alias or attribute
        yield prefix + name, field
        if section := section_class(field.annotation):
            yield from _walk(section, f"{prefix}{name}.")
