"""`@tool`: what makes a function or a method a tool."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from agentrl.errors import ConfigError
from agentrl.tools.schema import ToolArguments, arguments_of, tool_schema
from agentrl.types import ToolSchema

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any]")
_MARK = "__agentrl_tool__"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """One declared tool."""

    schema: ToolSchema
    function: Callable[..., Any]
    arguments: ToolArguments
    takes_self: bool
    is_async: bool
    isolated: bool = False
    timeout_s: float | None = None
    """None: the environment's `tool_timeout_s`."""
    side_effects: bool = False
    """A call changes something outside the episode, so a resumed run does not repeat it."""

    @property
    def name(self) -> str:
        """The name that the model calls."""
        return self.schema.name


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    timeout_s: float | None = None,
    isolated: bool = False,
    name: str | None = None,
    side_effects: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    timeout_s: float | None = None,
    isolated: bool = False,
    name: str | None = None,
    side_effects: bool = False,
) -> F | Callable[[F], F]:
    """Make a function or a method, sync or async, a tool that the model can call.

    The schema comes from the type hints and the Google docstring: every parameter needs both. An
    isolated tool runs in a process that is killed at the timeout, so it cannot use `self`.

    Args:
        function: the function, where the decorator stands without parentheses.
        timeout_s: seconds that one call may take; default: the environment's `tool_timeout_s`.
        isolated: run each call in a killable process.
        name: the name that the model sees; default: the function's.
        side_effects: a call changes something outside the episode: a resumed run takes its answer
            from the record instead of calling again.

    Raises:
        ConfigError: A hint, the docstring or the description of a parameter is missing.
    """

    def declare(target: F) -> F:
        inner = cast("Callable[..., object]", getattr(target, "__func__", target))
        called = inner.__name__ if name is None else name
        spec = _make_tool_spec(inner, called, timeout_s, isolated, side_effects)
        setattr(inner, _MARK, spec)
        return target

    return declare if function is None else declare(function)


def tool_spec(function: object) -> ToolSpec | None:
    """The declaration that `@tool` left on a function, method or static method."""
    found = getattr(getattr(function, "__func__", function), _MARK, None)
    return found if isinstance(found, ToolSpec) else None


def tools_of(cls: type) -> tuple[ToolSpec, ...]:
    """The tools of a class in the order of their definition, bases first.

    A method that overrides a tool without `@tool` takes it away.
    """
    attributes: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        attributes.update(vars(base))
    return unique_tools(
        tuple(spec for value in attributes.values() if (spec := tool_spec(value))), cls.__name__
    )


def unique_tools(specs: tuple[ToolSpec, ...], owner: str) -> tuple[ToolSpec, ...]:
    """The specs as they are; two of one name are a ConfigError."""
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{owner} has two tools named {name}; give one @tool(name=...)")
    return specs


def _make_tool_spec(
    function: Callable[..., object],
    name: str,
    timeout_s: float | None,
    isolated: bool,
    side_effects: bool,
) -> ToolSpec:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a tool; use letters, digits, _ and -")
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"tool {name} has timeout_s={timeout_s}, expected more than 0 seconds")
    is_async = inspect.iscoroutinefunction(function)
    if isolated and is_async:
        raise ConfigError(f"tool {name} is isolated and async; an isolated tool is a plain def")
    arguments = arguments_of(name, function)
    return ToolSpec(
        schema=tool_schema(name, function, arguments),
        function=function,
        arguments=arguments,
        takes_self="self" in inspect.signature(function).parameters,
        is_async=is_async,
        isolated=isolated,
        timeout_s=timeout_s,
        side_effects=side_effects,
    )
