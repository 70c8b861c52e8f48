"""Functions that a configuration names, with options behind the name: `gspo(low=1e-3)`."""

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

from agentrl.config.nearest import nearest
from agentrl.config.seams import Seam, check_function, instance_of
from agentrl.errors import ConfigError

Option = float | bool | str

_WRITTEN: Final = re.compile(r"((?:.*:)?[\w.-]+)\((.*)", re.DOTALL)
"""A name or a reference, whose folder may have brackets, and what stands behind its own."""
_MOST: Final = {"discount": 1.0, "decay": 1.0, "share": 1.0}
"""The largest value of built-in options that have one."""
_LEAST: Final = {"cap": 1, "ratio_most": 1, "k": 1}
"""The smallest one, where it is not 0: below 1 a bound would act on what has not moved at all."""
_ABOVE_ZERO: Final = (
    *("alpha", "positive", "negative", "length"),
    *("share", "coef", "most"),  # at 0 they would leave nothing to do, or nothing to train on
)


def resolve_function(
    seam: Seam,
    text: str,
    given: object,
    *arguments: str,
    keys: Callable[[object, Mapping[str, Option]], Mapping[str, Option]] | None = None,
) -> tuple[str, object]:
    """How messages name what a text names, and the function itself with the options behind it.

    Args:
        seam: where it is looked for.
        text: what the configuration says.
        given: it, where it was given as an object.
        arguments: the names of what it is called with.
        keys: what other keys of the configuration say of a built-in one's options, given those that
            stand behind its name.

    Raises:
        ConfigError: there is none, or it takes other arguments or options.
    """
    name, options = split_options(text)
    label = seam.label(name)
    found = instance_of(seam.find(name if given is None else given), label)
    is_built_in = any(found is known for known in seam.built_in.values())
    if is_built_in and keys is not None:
        options = {**keys(found, options), **options}
    function = with_options(found, options, label, is_built_in=is_built_in)
    check_function(function, label, *arguments)
    return label, function


def split_options(text: str) -> tuple[str, dict[str, Option]]:
    """What a text names, and the options behind it; raises ConfigError for what is none."""
    written = _WRITTEN.fullmatch(text)
    if written is None:
        return text, {}
    name, inside = written.groups()
    try:
        keywords = _read_keywords(ast.parse(f"_({inside}", mode="eval").body)
        found = {key: _evaluate_option(value) for key, value in keywords.items()}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"{text[:200]}: expected options as name(option=value, ...), such as gspo(low=1e-3)"
        ) from error
    return name, cast("dict[str, Option]", found)


def _read_keywords(call: ast.expr) -> dict[str, ast.expr]:
    """The options of a call, each given once; raises ValueError for anything else."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError("not a call with keywords alone")
    found = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if len(found) != len(call.keywords):
        raise ValueError("an option is given twice, or none is named")
    return found


def _evaluate_option(written: ast.expr) -> object:
    """A literal's value; what float alone reads (nan, inf) is a number too, to be refused by name.

    Raises ValueError for anything else.
    """
    text = ast.unparse(written)
    if text.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        return float(text)
    return cast("object", ast.literal_eval(written))


def with_options(
    function: object, options: Mapping[str, Option], label: str, *, is_built_in: bool = False
) -> object:
    """The function with its options given.

    Raises:
        ConfigError: it does not have one of them, or the value is none for it.
    """
    if not options or not callable(function):
        return function
    parameters = inspect.signature(function).parameters
    known = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{label} has no option {name}, {nearest(name, known)}")
        expected = _describe_expected(
            name, value, parameters[name].default, is_built_in=is_built_in
        )
        if expected is not None:
            raise ConfigError(f"{label}: option {name}: got {value!r:.40}, expected {expected}")
    return partial(function, **options)


def _describe_expected(
    name: str, value: object, default: object, *, is_built_in: bool
) -> str | None:
    """What an option's value should be, if it is not."""
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(value, bool) and (isinstance(default, bool) or not is_built_in)
        return None if fits else "true or false" if isinstance(default, bool) else "a number"
    if isinstance(value, str):
        return (
            None if isinstance(default, str) or default is inspect.Parameter.empty else "a number"
        )
    if isinstance(default, int) and not isinstance(value, int):
        return "a whole number"
    # Whole numbers have no bound, others have.
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return "a finite number"
    least, most = _LEAST.get(name, 0), _MOST.get(name, math.inf)
    fits = least < value <= most if name in _ABOVE_ZERO else least <= value <= most
    if fits or not is_built_in:
        return None
    bound = "more than" if name in _ABOVE_ZERO else "at least"
    return f"{bound} {least}" + (f" and at most {most:g}" if name in _MOST else "")


def defaults_of(function: object) -> dict[str, Option]:
    """The options of a function, with their defaults."""
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
