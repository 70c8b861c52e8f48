"""Options of an estimator or a loss, written behind its name: `gspo(low=1e-3, high=2e-3)`."""

import ast
import inspect
from collections.abc import Mapping
from functools import partial
from typing import cast

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError

Options = Mapping[str, float | bool]


def split_options(text: str) -> tuple[str, dict[str, float | bool]]:
    """What a text names, and the options behind it; raises ConfigError for what is none."""
    name, bracket, inside = text.partition("(")
    if not bracket or text.startswith("<"):
        return text, {}
    try:
        call = ast.parse(f"_({inside}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        found = {str(k.arg): cast("object", ast.literal_eval(k.value)) for k in call.keywords}
        assert all(isinstance(value, int | float) for value in found.values())
    except (SyntaxError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"{text}: expected options as name(option=number, ...), such as gspo(low=1e-3)"
        ) from error
    return name, cast("dict[str, float | bool]", found)


def with_options(function: object, options: Options, label: str) -> object:
    """The function with its options given; raises ConfigError for one that it does not have."""
    if not options:
        return function
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ConfigError(f"{label} has no option {name}, {nearest(name, known)}")
    return partial(function, **options)


def defaults_of(function: object) -> dict[str, float | bool]:
    """The options of a function, with their defaults."""
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
