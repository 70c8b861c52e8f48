"""Fits arguments to a tool's JSON schema.

Known keywords: type (one or several), enum, const, required, properties, additionalProperties,
items, anyOf, oneOf, nullable. Others are ignored. Nothing is converted, with one exception that
JSON schema itself makes: a number without fraction is an integer, so 5.0 becomes 5 where an integer
is asked.

Formats that write arguments as text (`from_text`) get their types from the schema too. Where only
a string may stand, the text is the string, to the last byte. Where other types may stand too, a
text that is JSON of one of these is that value and any other is a string; without any type the
same goes for all JSON but strings, which nothing quotes. Python's True, False and None count as
JSON's words, since templates write them.
"""

import difflib
from collections.abc import Mapping, Sequence

from agentrl.tokens.formats.scan import BadJson, read_value
from agentrl.types import Json

Schema = Mapping[str, Json]


class SchemaMismatch(ValueError):
    """The value does not fit; the message names the field, what it got and what it expected."""


def fit(value: Json, schema: Schema, path: str = "") -> Json:
    """The value as the schema wants it. Raises SchemaMismatch."""
    value = _fit_value_to_schema_type(value, schema, path)
    if "enum" in schema and value not in (allowed := _wrap_in_list(schema["enum"])):
        raise SchemaMismatch(
            f"{_quote_path(path)} is {_describe_value(value)}, expected one of {allowed}"
        )
    if "const" in schema and value != schema["const"]:
        raise SchemaMismatch(
            f"{_quote_path(path)} is {_describe_value(value)}, expected "
            f"{_describe_value(schema['const'])}"
        )
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            value = _fit_value_to_any_option(value, _wrap_in_list(schema[keyword]), path)
    if isinstance(value, str):
        return value
    if isinstance(value, dict | Mapping):  # a dict is known as one without asking Mapping
        return _fit_object_to_properties(value, schema, path)
    if isinstance(value, Sequence):
        items = schema.get("items")
        if isinstance(items, Mapping):
            return [fit(item, items, f"{path}[{i}]") for i, item in enumerate(value)]
    return value


def from_text(texts: Mapping[str, str], schema: Schema) -> dict[str, Json]:
    """The arguments in `texts`, by name, each by the type that `schema` gives it.

    Raises SchemaMismatch where no string may stand and the text is no JSON, BadJson where it is
    nested too deep.
    """
    known = schema.get("properties")
    properties: Schema = known if isinstance(known, Mapping) else {}
    return {
        key: _parse_text_by_schema(text, properties.get(key), key) for key, text in texts.items()
    }


def _parse_text_by_schema(text: str, schema: Json, path: str) -> Json:
    types = _collect_schema_types(schema)
    word = text.strip()
    if word in _PYTHON and type_name(_PYTHON[word]) in types:
        return _PYTHON[word]
    try:
        value = read_value(text)
    except BadJson as error:
        if error.fault == "too_large" and "string" not in types:
            raise
        if "string" in types or not types:
            return text
        wanted = " or ".join(sorted(types))
        message = f"{_quote_path(path)} is the text {_shorten_text(text)!r}, expected {wanted}"
        raise SchemaMismatch(message) from None
    name = type_name(value)
    fits = name in types or (name == "integer" and "number" in types)
    if name == "string":
        return text if "string" in types or not types else value
    return text if "string" in types and not fits else value


def _collect_schema_types(schema: Json) -> set[str]:
    """The types that a value may have; empty if the schema does not say."""
    if not isinstance(schema, Mapping):
        return set()
    if "type" in schema:
        return set(_list_type_names_of_schema(schema))
    for keyword in ("enum", "const"):
        if keyword in schema:
            return {type_name(value) for value in _wrap_in_list(schema[keyword])}
    options = [
        _collect_schema_types(o)
        for keyword in ("anyOf", "oneOf")
        for o in _wrap_in_list(schema.get(keyword, []))
    ]
    return set[str]().union(*options) if all(options) else set()


_PYTHON: dict[str, Json] = {"True": True, "False": False, "None": None}


def type_name(value: Json) -> str:
    """The JSON name of the value's type."""
    if type(value) in _NAMES:
        return _NAMES[type(value)]
    for name, python in _TYPES.items():
        if isinstance(value, python) and (name == "boolean") == isinstance(value, bool):
            return name
    return "null"


_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "object": Mapping,
    "array": Sequence,
}


def _fit_value_to_schema_type(value: Json, schema: Schema, path: str) -> Json:
    declared, actual = schema.get("type"), type_name(value)
    if declared is None or declared == actual:
        return value
    names = _list_type_names_of_schema(schema)
    if actual in names or (actual == "integer" and "number" in names):
        return value
    if "integer" in names and isinstance(value, float) and value.is_integer():
        return int(value)
    raise SchemaMismatch(
        f"{_quote_path(path)} is {_describe_value(value)}, expected {' or '.join(names)}"
    )


def _list_type_names_of_schema(schema: Schema) -> list[str]:
    nullable = ["null"] if schema.get("nullable") is True else []
    return [str(name) for name in _wrap_in_list(schema["type"])] + nullable


def _fit_value_to_any_option(value: Json, options: Sequence[Json], path: str) -> Json:
    reasons: list[str] = []
    for option in options:
        if not isinstance(option, Mapping):
            continue
        try:
            return fit(value, option, path)
        except SchemaMismatch as mismatch:
            reasons.append(str(mismatch))
    raise SchemaMismatch(
        "; or ".join(dict.fromkeys(reasons)) or f"{_quote_path(path)} fits nothing"
    )


def _fit_object_to_properties(value: Mapping[str, Json], schema: Schema, path: str) -> Json:
    known = schema.get("properties", {})
    properties: Mapping[str, Json] = known if isinstance(known, Mapping) else {}
    rest = schema.get("additionalProperties", True)
    for key in _wrap_in_list(schema.get("required", [])):
        if key not in value:
            raise SchemaMismatch(
                f"{_quote_path(_join_argument_path(path, str(key)))} is missing, it is required"
            )
    fitted: dict[str, Json] = {}
    for key, item in value.items():
        inner = properties.get(key, rest)
        if inner is False:
            near = difflib.get_close_matches(key[:100], list(properties), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {list(properties)}"
            mark = "," if near else ";"
            raise SchemaMismatch(
                f"{_quote_path(_join_argument_path(path, key))} is not expected{mark} {hint}"
            )
        fitted[key] = (
            fit(item, inner, _join_argument_path(path, key)) if isinstance(inner, Mapping) else item
        )
    return fitted


def _wrap_in_list(value: Json) -> Sequence[Json]:
    return [value] if isinstance(value, str) or not isinstance(value, Sequence) else value


def _join_argument_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _quote_path(path: str) -> str:
    return f"argument {_shorten_text(path)!r}" if path else "the arguments object"


def _describe_value(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {_shorten_text(value)!r}"
    if isinstance(value, int | float):
        return f"the {type_name(value)} {_shorten_text(str(value))}"
    return f"an {type_name(value)}"


def _shorten_text(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
