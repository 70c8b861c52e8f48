"""A calculator for text that a model wrote: numbers, + - * / // % **, unary signs, parentheses.

Nothing but arithmetic is understood. `evaluate` takes as long as the numbers need, so it belongs
into a process that can be killed. With `max_bits` it refuses to make numbers larger than that, and
then it is bounded: at most 256 characters, so at most 128 operations on operands of `max_bits`.
"""

import ast
import math
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from agentrl.errors import ToolError

Number: TypeAlias = int | float

MAX_CHARS: Final = 256
MAX_RESULT_BITS: Final = 3000
"""Larger results, of more than some 900 digits, are refused."""
# No letters, so no names, calls, attributes or keywords ever reach the parser.
_ALLOWED: Final = re.compile(r"[0-9.+\-*/%() \t]*")
_MAX_DEPTH: Final = 64

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: lambda a: +a,
    ast.USub: lambda a: -a,
}


class TooCostly(Exception):
    """The result of an operation could have more than `max_bits` bits."""


def evaluate(expression: str, max_bits: int | None = None) -> str:
    """The value of an expression, as text.

    Raises:
        ToolError: It is no arithmetic, divides by zero, or its value is too long.
        TooCostly: With `max_bits`, before an operation that could exceed it.
    """
    tree = _parse_arithmetic(expression)
    try:
        return _format_number_exactly(_evaluate_node(tree, max_bits, depth=0))
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the value is too large") from None


def _parse_arithmetic(expression: str) -> ast.expr:
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression is longer than {MAX_CHARS} characters")
    if not _ALLOWED.fullmatch(expression):
        raise ToolError("only numbers, + - * / // % ** and parentheses are understood")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):
        raise ToolError(f"{expression!r} is no complete expression") from None


def _evaluate_node(node: ast.expr, max_bits: int | None, depth: int) -> Number:
    if depth > _MAX_DEPTH:
        raise ToolError("the expression is nested too deeply")
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _require_real(_UNARY[type(op)](_evaluate_node(operand, max_bits, depth + 1)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a = _evaluate_node(left, max_bits, depth + 1)
            b = _evaluate_node(right, max_bits, depth + 1)
            if max_bits is not None and _bound_result_bits(op, a, b) > max_bits:
                raise TooCostly
            return _require_real(_BINARY[type(op)](a, b))
        case _:
            raise ToolError("only numbers, + - * / // % ** and parentheses are understood")


def _bound_result_bits(op: ast.operator, a: Number, b: Number) -> int:
    """An upper bound on the bits of the result; floats have a fixed size."""
    if isinstance(a, float) or isinstance(b, float):
        return 64
    if isinstance(op, ast.Pow):
        return a.bit_length() * max(b, 1)
    return a.bit_length() + b.bit_length() + 1


def _require_real(value: object) -> Number:
    # A negative number to a fractional power is complex.
    if not isinstance(value, int | float) or abs(value) == math.inf or value != value:
        raise ToolError("the value is no real number")
    return value


def _format_number_exactly(value: Number) -> str:
    """Integers exactly, whole floats as integers, others by their shortest form."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and value.bit_length() > MAX_RESULT_BITS:
        raise ToolError("the value has more than 900 digits")
    return str(value)
