"""The text of `agentrl COMMAND --help`, made from the fields of the command's configuration."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from agentrl.cli.command import Verb
from agentrl.config.describe import describe_bounds, placeholder
from agentrl.config.dump import toml_value
from agentrl.config.flags import flag_of
from agentrl.config.plain import plain
from agentrl.config.schema import Schema, is_switch, schema_of

_INDENT = 30


def render(name: str, command: Verb[Any]) -> str:
    """Usage, examples, then every flag: the command's own, the short names, all keys."""
    flags = " [--KEY VALUE ...]" if command.config else ""
    takes = "".join(f" {taken}" for taken in command.takes)
    lines = [f"usage: agentrl {name}{takes}{flags}", "", command.summary]
    lines += ["", "examples:", *(f"  {example}" for example in command.examples)]
    lines += ["", "options:", *_describe_keys_without_short_flag(schema_of(command.options), {})]
    lines += _wrap_help_entry("--help", "Show this.")
    if command.config is not None:
        schema = schema_of(command.config)
        if command.short:
            lines += ["", "common keys:", *_describe_short_flags(schema, command.short)]
        lines += ["", "all keys (in a file as [section] and key):"]
        lines += _describe_keys_without_short_flag(schema, command.short)
    return "\n".join(lines)


def _describe_short_flags(schema: Schema, short: Mapping[str, str]) -> Iterator[str]:
    for name, key in short.items():
        if key in schema.tables:
            yield from _wrap_help_entry(
                f"--{name} NAME", f"One [[{key}]] table; its keys are --{key}.KEY."
            )
            continue
        if key not in schema.leaves:
            yield from _wrap_help_entry(f"--{name} VALUE", f"Short for {flag_of(key)}.")
            continue
        alias = "" if key == name.replace("-", "_") else f"Short for {flag_of(key)}. "
        yield from _wrap_help_entry(
            _name_flag_with_value(f"--{name}", schema.leaves[key]),
            alias + _describe_config_field(schema.leaves[key]),
        )


def _describe_keys_without_short_flag(schema: Schema, short: Mapping[str, str]) -> Iterator[str]:
    """Every key that is not already shown under the same name."""
    shown = {key for name, key in short.items() if key == name.replace("-", "_")}
    for key, field in schema.leaves.items():
        if key not in shown:
            yield from _wrap_help_entry(
                _name_flag_with_value(flag_of(key), field), _describe_config_field(field)
            )
    for key, table in schema.tables.items():
        for name, field in schema_of(table).leaves.items():
            if name != "name":
                yield from _wrap_help_entry(
                    _name_flag_with_value(flag_of(f"{key}.{name}"), field),
                    _describe_config_field(field),
                )
        if table.model_config.get("extra") == "allow":
            yield from _wrap_help_entry(f"--{key}.KEY VALUE", f"A parameter of the {key} itself.")


def _name_flag_with_value(name: str, field: FieldInfo) -> str:
    return name if is_switch(field) else f"{name} {placeholder(field)}"


def _describe_config_field(field: FieldInfo) -> str:
    facts = [describe_bounds(field)]
    if field.is_required():
        facts.append("required")
    else:
        default = toml_value(plain(field.get_default(call_default_factory=True))).strip('"')
        facts += [f"default {default}"] * (default not in ("none", "false", "", "[]", "{}"))
    listed = "; ".join(fact for fact in facts if fact)
    text = (field.description or "").rstrip(".")
    described = f"{text}." if text else ""
    return f"{described} {f'({listed})' if listed else ''}".strip()


def _wrap_help_entry(flag: str, text: str) -> list[str]:
    """One flag with its description beside it, or below it where the flag is long."""
    width = max(shutil.get_terminal_size((100, 24)).columns, 60)
    body = textwrap.wrap(text, width - _INDENT) or [""]
    head = f"  {flag}"
    if len(head) > _INDENT - 2:
        return [head, *(" " * _INDENT + line for line in body)]
    first, *rest = body
    return [f"{head:{_INDENT}}{first}".rstrip(), *(" " * _INDENT + line for line in rest)]
