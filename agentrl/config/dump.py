"""The effective configuration as TOML: after each value, where it came from.

The text loads back to the same configuration. None is written as the text `none`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from agentrl.config.draft import DEFAULT, C, Loaded
from agentrl.config.plain import as_list, as_mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEAD = "# The effective configuration; after each value, where it came from.\n"


def dump_config(loaded: Loaded[C]) -> str:
    """Write a loaded configuration as TOML text with the origins as comments."""
    data = loaded.config.model_dump(mode="json")
    return _HEAD + "\n".join(_render_toml_section(data, "", "", loaded.origins)) + "\n"


def toml_value(value: object) -> str:
    """One value in TOML; tables are written inline."""
    match value:
        case None:
            return '"none"'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # A JSON text is a TOML basic string, except for this one control character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return f"[{', '.join(toml_value(item) for item in items)}]"
        case _:
            return _render_inline_table(value)


def _render_inline_table(value: object) -> str:
    table = as_mapping(value)
    if table is None:
        raise TypeError(f"got {type(value).__name__}, expected a TOML value")
    items = (f"{_quote_toml_key(name)} = {toml_value(item)}" for name, item in table.items())
    return f"{{{', '.join(items)}}}"


def _render_toml_section(
    data: Mapping[str, object], name: str, path: str, origins: Mapping[str, str]
) -> Iterator[str]:
    """The lines of one table: its values, then its sections and lists of tables.

    `name` is its name in headers, `path` its key in `origins` (with row numbers).
    """
    below: list[tuple[str, object]] = []
    for key, value in data.items():
        origin = origins.get(f"{path}{key}", DEFAULT)
        has_keys = any(known.startswith(f"{path}{key}.") for known in origins)
        is_nested = as_mapping(value) is not None or as_list(value) is not None
        if has_keys and is_nested and f"{path}{key}" not in origins:
            below.append((key, value))
        else:
            comment = "".join(c if c.isprintable() else "?" for c in origin)
            yield f"{_quote_toml_key(key)} = {toml_value(value)}  # {comment}"
    for key, value in below:
        header = f"{name}{_quote_toml_key(key)}"
        section = as_mapping(value)
        if section is not None:
            yield f"\n[{header}]"
            yield from _render_toml_section(section, f"{header}.", f"{path}{key}.", origins)
            continue
        for i, row in enumerate(cast("list[object]", value)):
            yield f"\n[[{header}]]"
            yield from _render_toml_section(
                as_mapping(row) or {}, f"{header}.", f"{path}{key}.{i}.", origins
            )


def _quote_toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)
