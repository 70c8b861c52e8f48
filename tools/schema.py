"""From type hints and a Google docstring to a JSON schema, and from JSON to arguments."""

import inspect
import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NotRequired, Required, cast, get_type_hints

import docstring_parser
from docstring_parser.common import DocstringStyle
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import TypedDict

from agentrl.errors import ConfigError, ToolError
from agentrl.types import Json, ToolSchema

_POSITIONAL_OR_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolArguments:
    """The parameters of one tool: their schema, and what a model's arguments become."""

    def __init__(self, tool: str, parameters: list[inspect.Parameter], hints: dict[str, Any]):
        self._tool = tool
        self._parameters = parameters
        fields = {
            p.name: Required[hints[p.name]] if p.default is p.empty else NotRequired[hints[p.name]]
            for p in parameters
        }
        # The functional form, because the fields are known only now.
        typed = cast("Callable[..., Any]", TypedDict)("ToolArguments", fields)
        typed.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
        try:
            self._adapter: TypeAdapter[dict[str, object]] = TypeAdapter(typed)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            said = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"tool {tool} has a parameter that JSON cannot express: {said}"
            ) from error

    def schema(self, descriptions: Mapping[str, str]) -> dict[str, Json]:
        """The JSON schema of type object, with descriptions and defaults."""
        found = self._adapter.json_schema(schema_generator=_Untitled)
        found = _inline_references(found, found.pop("$defs", {}), depth=0)
        properties = {
            p.name: _add_description(found["properties"][p.name], descriptions[p.name], p.default)
            for p in self._parameters
        }
        required = [p.name for p in self._parameters if p.default is p.empty]
        return {"type": "object", "properties": properties, "required": required}

    def bind(self, arguments: Mapping[str, Json]) -> dict[str, object]:
        """Keyword arguments for the tool; a ToolError names each field that does not fit."""
        try:
            # By way of JSON, so that an enum or a tuple takes the JSON form that the schema shows.
            return self._adapter.validate_json(to_json(arguments, fallback=dict))
        except ValidationError as error:
            problems = "; ".join(_describe_bad_field(dict(item)) for item in error.errors()[:5])
            raise ToolError(f"{self._tool}: {problems}") from error
        except PydanticSerializationError as error:  # half of a surrogate pair
            raise ToolError(f"{self._tool}: the arguments are not JSON: {error}") from error


def arguments_of(tool: str, function: Callable[..., object]) -> ToolArguments:
    """The parameters of `function`, without `self`; each has a type hint or it is a ConfigError."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(f"tool {tool} has a type hint that cannot be resolved: {error}") from None
    for p in parameters:
        if p.kind not in _POSITIONAL_OR_KEYWORD:
            raise ConfigError(f"tool {tool} takes {p}, expected named parameters only")
        if p.name not in hints:
            raise ConfigError(
                f"tool {tool} has no type hint for parameter {p.name}; write {p.name}: str or "
                "whatever it takes"
            )
    return ToolArguments(tool, parameters, {p.name: hints[p.name] for p in parameters})


def tool_schema(tool: str, function: Callable[..., object], arguments: ToolArguments) -> ToolSchema:
    """The tool as the model sees it; a missing description is a ConfigError."""
    text = inspect.getdoc(function)
    if not text:
        raise ConfigError(f"tool {tool} has no docstring; say in it what the tool does")
    doc = docstring_parser.parse(text, style=DocstringStyle.GOOGLE)
    described = {p.arg_name: (p.description or "").strip() for p in doc.params}
    for name in inspect.signature(function).parameters:
        if name != "self" and not described.get(name):
            raise ConfigError(
                f"tool {tool} does not describe parameter {name}; add it under Args: in the "
                "docstring"
            )
    description = "\n\n".join(
        part.strip() for part in (doc.short_description, doc.long_description) if part
    )
    return ToolSchema(name=tool, description=description, parameters=arguments.schema(described))


class _Untitled(GenerateJsonSchema):
    """Without the titles that repeat the names: they are tokens in every prompt."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return _drop_schema_keys(super().typed_dict_schema(schema), "title", "additionalProperties")


def _drop_schema_keys(schema: JsonSchemaValue, *keys: str) -> JsonSchemaValue:
    return {key: value for key, value in schema.items() if key not in keys}


def _inline_references(node: Any, definitions: Mapping[str, Any], *, depth: int) -> Any:
    """`node` with references replaced: parsers and templates do not follow them."""
    if depth > 20:
        raise ConfigError("a tool has a parameter of a recursive type; JSON text needs an end")
    if isinstance(node, list):
        items = cast("list[object]", node)
        return [_inline_references(item, definitions, depth=depth + 1) for item in items]
    if not isinstance(node, dict):
        return node
    mapping = cast("dict[str, Any]", node)
    reference = mapping.get("$ref")
    if isinstance(reference, str):
        target = _drop_schema_keys(
            definitions[reference.removeprefix("#/$defs/")], "title", "description"
        )
        return _inline_references(target, definitions, depth=depth + 1)
    return {
        key: _inline_references(value, definitions, depth=depth + 1)
        for key, value in mapping.items()
    }


def _add_description(
    schema: Mapping[str, Json], description: str, default: object
) -> dict[str, Json]:
    described: dict[str, Json] = {**schema, "description": description}
    if isinstance(default, Enum):
        default = default.value
    if default is not None and isinstance(default, bool | int | float | str | list | dict):
        described["default"] = cast("Json", default)
    return described


def _describe_bad_field(item: Mapping[str, Any]) -> str:
    """One validation error in words for the model."""
    where = ".".join(str(part) for part in item["loc"]) or "arguments"
    match item["type"]:
        case "missing":
            return f"argument {where} is missing"
        case "extra_forbidden":
            return f"unknown argument {where}"
        case _:
            got = json.dumps(item["input"], ensure_ascii=False, default=str)
            return f"argument {where}: {item['msg']}, got {got[:80]}"
