"""The kinds of bugs that are planted: each yields small edits of one node of the syntax tree.

An operator is a pure function of a source and a node, so a record of (node, operator, `to`) is
enough to make the same edit again.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Mapping
from keyword import iskeyword
from typing import Final, TypeAlias

from agentrl.envs.swe.build.source import Node, PackageSource, SourceEdit

Operator: TypeAlias = Callable[[PackageSource, Node], Iterator[SourceEdit]]

_BOUNDARIES: Final[Mapping[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[str, str]]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
_ARITHMETIC: Final[Mapping[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "//"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_METHODS: Final = {
    **{a: b for pair in (
        ("lower", "upper"), ("startswith", "endswith"), ("lstrip", "rstrip"), ("find", "rfind"),
        ("split", "rsplit"), ("partition", "rpartition"), ("ljust", "rjust"), ("min", "max"),
        ("any", "all"), ("append", "extend"), ("keys", "values"), ("add", "discard"),
        ("popleft", "pop"), ("appendleft", "append"), ("match", "search"),
    ) for a, b in (pair, pair[::-1])},
    "append": "extend",
    "pop": "popleft",
}  # fmt: skip
_EXCEPTIONS: Final = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "NameError",
    "StopIteration": "IndexError",
    "NotImplementedError": "RuntimeError",
    "RuntimeError": "ValueError",
    "OSError": "ValueError",
    "UnicodeDecodeError": "KeyError",
}
_ORDERED: Final = ("isinstance", "issubclass", "getattr", "setattr", "hasattr")
"""Nobody mixes up their arguments."""
_SMALL: Final = 1000
_MOST_OTHER_NAMES: Final = 3


def _replace_op(
    source: PackageSource, left: Node, right: Node, old: str, new: str
) -> Iterator[SourceEdit]:
    """Replace the operator between two operands; `old` is a pattern."""
    start, end = source.span(left)[1], source.span(right)[0]
    found = re.search(rf"(?<![#\w]){old}", source.text[start:end])
    if found and "#" not in source.text[start : start + found.start()]:
        yield SourceEdit(start=start + found.start(), end=start + found.end(), text=new, to=new)


def _replace_node(source: PackageSource, node: Node, text: str, to: str) -> SourceEdit:
    start, end = source.span(node)
    return SourceEdit(start=start, end=end, text=text, to=to)


def _replace_comparison(
    source: PackageSource, node: Node, table: Mapping[type[ast.cmpop], tuple[str, str]]
) -> Iterator[SourceEdit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in table:
        old, new = table[type(node.ops[0])]
        yield from _replace_op(source, node.left, node.comparators[0], old, new)


def boundary(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`<` becomes `<=` and so on."""
    return _replace_comparison(source, node, _BOUNDARIES)


def comparison(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`==` becomes `!=`, `in` becomes `not in`."""
    return _replace_comparison(source, node, _COMPARISONS)


def arithmetic(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`+` becomes `-`; what is done to a literal string is left alone."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        sides = (node.left, node.right)
        texts = [
            s for s in sides if isinstance(s, ast.Constant) and isinstance(s.value, str | bytes)
        ]
        if not texts and not any(isinstance(side, ast.JoinedStr) for side in sides):
            old, new = _ARITHMETIC[type(node.op)]
            yield from _replace_op(source, node.left, node.right, re.escape(old), new)


def logic(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`and` becomes `or`."""
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _replace_op(source, node.values[0], node.values[1], old, new)


def condition(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """The condition of an `if` or `while` is turned round."""
    if isinstance(node, ast.If | ast.IfExp):
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield _replace_node(source, test, source.segment(test.operand), "without not")
        else:
            yield _replace_node(source, test, f"not ({source.segment(test)})", "not")


def missing_condition(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """One part of an `and` or `or` is left out."""
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        for i, kept in enumerate(node.values):
            yield _replace_node(source, node, f"({source.segment(kept)})", f"part {i + 1}")


def off_by_one(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """A small whole number is one more or one less."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < _SMALL:
        for value in (node.value + 1, node.value - 1):
            text = f"({value})" if value < 0 else str(value)
            yield _replace_node(source, node, text, str(value))


def flag(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`True` becomes `False`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _replace_node(source, node, str(not node.value), str(not node.value))


def default(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """The default of a parameter is another one."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for i, value in enumerate([*node.args.defaults, *node.args.kw_defaults]):
        if isinstance(value, ast.Constant) and value.value is not None:
            old = value.value
            new: object = not old if isinstance(old, bool) else None
            if type(old) is int:
                new = old + 1
            elif isinstance(old, str):
                new = "" if old else " "
            yield _replace_node(source, value, repr(new), f"{i}: {new!r}")


def missing_call(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`f(x)` becomes `x`, `x.strip()` becomes `x`."""
    if not isinstance(node, ast.Call) or node.keywords:
        return
    if len(node.args) == 1 and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        if isinstance(node.func, ast.Name):
            yield _replace_node(source, node, f"({source.segment(node.args[0])})", "argument")
    elif not node.args and isinstance(node.func, ast.Attribute):
        yield _replace_node(source, node, source.segment(node.func.value), "object")


def missing_statement(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """A call, an assignment to an attribute or item, or a `+=` is left out."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if (
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or isinstance(node, ast.AugAssign | ast.Delete)
        or isinstance(target, ast.Attribute | ast.Subscript)
    ):
        yield _replace_node(source, node, "pass", "pass")


def wrong_variable(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """A variable is read where another parameter or variable of the function was meant."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    names = _list_known_names(source.functions[node][0], node.lineno)
    if node.id in names:
        # Names that look alike are confused most.
        others = sorted(names - {node.id}, key=lambda n: (n[:1] != node.id[:1], n))
        for name in others[:_MOST_OTHER_NAMES]:
            yield _replace_node(source, node, name, name)


def exception(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """Another built-in exception is raised, or caught."""
    where: ast.expr | None = None
    if isinstance(node, ast.Raise):
        where = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    elif isinstance(node, ast.ExceptHandler):
        where = node.type
    if isinstance(where, ast.Name) and where.id in _EXCEPTIONS:
        new = _EXCEPTIONS[where.id]
        yield _replace_node(source, where, new, new)


def missing_argument(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """A keyword argument is not passed on."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            start, end = source.span(keyword)
            before = source.text[:start].rstrip()
            if keyword.arg and before.endswith(","):
                yield SourceEdit(start=len(before) - 1, end=end, text="", to=keyword.arg)


def swapped_arguments(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """Two neighbouring arguments change places."""
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return
    if not (isinstance(node.func, ast.Name) and node.func.id in _ORDERED):
        for i, (left, right) in enumerate(zip(node.args, node.args[1:], strict=False)):
            start, end = source.span(left)[0], source.span(right)[1]
            gap = source.text[source.span(left)[1] : source.span(right)[0]]
            text = source.segment(right) + gap + source.segment(left)
            yield SourceEdit(start=start, end=end, text=text, to=f"argument {i + 1}")


def missing_return(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """The value of a `return` is lost."""
    if (
        isinstance(node, ast.Return)
        and node.value is not None
        and source.segment(node.value) != "None"
    ):
        yield _replace_node(source, node, "return None", "None")


def loop(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`break` becomes `continue`."""
    if isinstance(node, ast.Break | ast.Continue):
        text = "continue" if isinstance(node, ast.Break) else "break"
        yield _replace_node(source, node, text, text)


def slice_bound(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """A slice loses a bound."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for name, bound in (("lower", node.slice.lower), ("upper", node.slice.upper)):
            if bound is not None:
                yield _replace_node(source, bound, "", name)


def assignment(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """`+=` becomes `=` or `-=`."""
    if isinstance(node, ast.AugAssign):
        old, new = _ARITHMETIC.get(type(node.op), ("", ""))
        if old:
            for text in ("=", f"{new}="):
                yield from _replace_op(source, node.target, node.value, re.escape(old) + "=", text)


def wrong_method(source: PackageSource, node: Node) -> Iterator[SourceEdit]:
    """Another function of the same family is called: `startswith` for `endswith`."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        end, new = source.span(node.func)[1], _METHODS[node.func.attr]
        yield SourceEdit(start=end - len(node.func.attr), end=end, text=new, to=new)
    elif isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "any", "all"):
        new = _METHODS[node.func.id]
        yield _replace_node(source, node.func, new, new)


OPERATORS: Final[Mapping[str, Operator]] = {
    function.__name__: function
    for function in (
        boundary, comparison, arithmetic, logic, condition, missing_condition, off_by_one, flag,
        default, missing_call, missing_statement, wrong_variable, exception, missing_argument,
        swapped_arguments, missing_return, loop, slice_bound, assignment, wrong_method,
    )
}  # fmt: skip


def changed_names(source: PackageSource, node: Node, edit: SourceEdit) -> frozenset[str]:
    """The names that a description of the bug must not hold: the function's and the edit's own."""
    function, qualified = source.functions.get(node, (None, ""))
    names = {qualified.rpartition(".")[2]} if function is not None else set[str]()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names.add(node.name)
    for text in (source.text[edit.start : edit.end], edit.text):
        names.update(re.findall(r"[^\W\d]\w*", text))
    harmless = {"self", "cls", *dir(builtins)} - _EXCEPTIONS.keys()
    return frozenset(n for n in names if n not in harmless and not iskeyword(n))


def _list_known_names(function: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> set[str]:
    """The function's parameters, and the variables that it sets on lines before."""
    of = function.args
    every = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
    parameters = {arg.arg for arg in every if arg is not None}
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store) and n.lineno < line}
    return (parameters | stored) - {"self", "cls"}
