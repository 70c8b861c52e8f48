"""Where a test file says what it expects: the literals that comparisons for equality go by.

A literal may stand in the comparison, in a case of `parametrize`, in a list that a loop goes over,
in a constant of the function, the class or the file, or in the call of a helper that compares.
"""

import ast
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

from agentrl.envs.swe.rewriting import Function, Place, comparisons, place_of, site_of

Helpers: TypeAlias = Mapping[str, Function]
Names: TypeAlias = Mapping[str, Sequence["Origin"]]
_PURE: Final = frozenset(
    {"approx", "Fraction", "Decimal", "datetime", "date", "time", "timedelta", "set", "frozenset"}
    | {
        "OrderedDict",
        "dict",
        "list",
        "tuple",
        "Path",
        "PurePosixPath",
        "complex",
        "UUID",
        "snapshot",
    }
)
"""What they make is given by their arguments, whatever the code under test does."""
_DEEPEST: Final = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """An expression, and the case of `parametrize` that it stands in: `c3`, or ""."""

    node: ast.expr
    case: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A literal that says what is expected."""

    file: str
    test_file: str
    """Whose comparisons go by it: the same, or one that reads it."""
    place: Place
    value: object
    sites: Mapping[str, int]
    """The comparisons that go by it, each with the side of the program."""
    users: frozenset[str]
    """The functions that it has anything to do with, by name."""
    case: str = ""
    """The only case of these tests that it stands in: `c3`; "": none, or there are several."""
    siblings: tuple[object, ...] = ()
    """The values of its function's other literals."""
    written: str = ""
    """As it stands in a file of data; "": in a test file, as Python's."""


def find_spots(file: str, text: str) -> list[Spot]:
    """The literals of a test file that comparisons for equality go by.

    Raises:
        SyntaxError: It is no Python.
    """
    tree = ast.parse(text)
    constants = {**_find_constants(tree.body), **_find_class_constants(tree)}
    helpers = _list_helpers(ast.walk(tree))
    found: dict[Place, Spot] = {}
    users: dict[Place, set[str]] = defaultdict(set)
    values: dict[str, list[object]] = defaultdict(list)
    for name, function, marks in _list_functions_with_decorators(tree, ()):
        names: Names = {
            **constants,
            **_find_locals(function, constants),
            **_list_parameter_values(marks, constants),
        }
        nested = {**helpers, **_list_helpers(itertools.islice(ast.walk(function), 1, None))}
        scopes = [*_list_scopes(function, names, nested, constants)]
        for place in _list_used_places([*dict(scopes), *marks], constants):
            users[place].add(name)
        alone = sum(map(_is_parametrize_mark, marks)) == 1
        for spot in itertools.chain.from_iterable(_find_spots(file, *scope) for scope in scopes):
            values[min(spot.users)].append(spot.value)
            known = found.get(spot.place, spot)
            case = spot.case if alone and known.case == spot.case else ""
            found[spot.place] = replace(spot, sites={**known.sites, **spot.sites}, case=case)
    return [
        replace(
            spot,
            users=frozenset(users[spot.place]),
            siblings=tuple(values[min(spot.users)]),
        )
        for spot in found.values()
    ]


def _list_used_places(nodes: Sequence[ast.AST], constants: Names) -> Iterator[Place]:
    """Where the expressions of a function stand, and those of the constants that it names."""
    for node in itertools.chain.from_iterable(map(ast.walk, nodes)):
        if isinstance(node, ast.expr):
            yield place_of(node)
        if isinstance(node, ast.Name | ast.Attribute):
            for source in constants.get(name := ast.unparse(node), ()):
                others = {n: c for n, c in constants.items() if n != name}
                yield from _list_used_places([source.node], others)


def _list_functions_with_decorators(
    node: ast.Module | ast.ClassDef, marks: tuple[ast.expr, ...]
) -> Iterator[tuple[str, Function, tuple[ast.expr, ...]]]:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _list_functions_with_decorators(child, (*marks, *child.decorator_list))
        elif isinstance(child, Function):
            yield child.name, child, (*marks, *child.decorator_list)


def _list_helpers(nodes: Iterable[ast.AST]) -> dict[str, Function]:
    """Functions that tests may call, by names that only one has."""
    found = [node for node in nodes if isinstance(node, Function)]
    num_of = Counter(function.name for function in found)
    return {function.name: function for function in found if num_of[function.name] == 1}


def _list_scopes(
    function: Function, names: Names, helpers: Helpers, constants: Names
) -> Iterator[tuple[Function, Names]]:
    """A function and the helpers that it calls, each with what its names stand for."""
    yield function, names
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name)
            ) if name in helpers:
                given = {
                    parameter: [*_trace_expression_to_literals(Origin(value), names, 0)]
                    for parameter, value in _match_arguments(node, helpers[name])
                }
                known = {**constants, **given}
                inside = {**known, **_find_locals(helpers[name], known)}
                others = {n: helper for n, helper in helpers.items() if n != name}
                yield from _list_scopes(helpers[name], inside, others, constants)
            case _:
                pass


def _match_arguments(call: ast.Call, helper: Function) -> Iterator[tuple[str, ast.expr]]:
    parameters = [a.arg for a in helper.args.args if a.arg not in ("self", "cls")]
    plain = itertools.takewhile(lambda value: not isinstance(value, ast.Starred), call.args)
    yield from zip(parameters, plain, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)


def _find_spots(file: str, function: Function, names: Names) -> Iterator[Spot]:
    for node in ast.walk(function):
        if not isinstance(node, ast.stmt):
            continue
        for comparison, sides in comparisons(node):
            if _has_tolerance(comparison):
                continue
            for expected in (1, 0):
                sources = [*_trace_expression_to_literals(Origin(sides[expected]), names, 0)]
                for source in sources:
                    yield Spot(
                        file=file,
                        test_file=file,
                        place=place_of(source.node),
                        value=ast.literal_eval(source.node),
                        sites={site_of(comparison): 1 - expected},
                        users=frozenset({function.name}),
                        case=source.case,
                    )
                if sources:
                    break


def _trace_expression_to_literals(source: Origin, names: Names, depth: int) -> Iterator[Origin]:
    """The literals that an expression is made of; of a call or a container the first one."""
    node = source.node
    if depth > _DEEPEST or _has_tolerance(node):
        return
    if is_literal(node):
        yield source
    elif isinstance(node, ast.Name | ast.Attribute):
        for other in names.get(ast.unparse(node), ()):
            case = source.case or other.case
            yield from _trace_expression_to_literals(Origin(other.node, case), names, depth + 1)
    elif parts := _list_literal_parts(node):
        each = (
            [*_trace_expression_to_literals(Origin(part, source.case), names, depth + 1)]
            for part in parts
        )
        yield from next((literals for literals in each if literals), list[Origin]())


def _list_literal_parts(node: ast.expr) -> Sequence[ast.expr]:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PURE:
            return [*node.args, *(keyword.value for keyword in node.keywords)]
        case ast.List() | ast.Tuple() | ast.Set():
            return node.elts
        case ast.Dict():
            return node.values
        case _:
            return []


def _has_tolerance(node: ast.expr) -> bool:
    """True for tests for nearness that say how near: further than we take for rounding, maybe."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
    plain = {"approx": 1, "assertAlmostEqual": 2}.get(name or "")
    return plain is not None and (len(node.args) > plain or bool(node.keywords))


def is_literal(node: ast.expr | str) -> bool:
    """True for the code of a value of builtin types."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _find_constants(body: Sequence[ast.stmt]) -> dict[str, list[Origin]]:
    """Names that are bound once, to an expression."""
    bound: dict[str, list[Origin]] = defaultdict(list)
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                bound[name].append(Origin(value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                bound[name].append(Origin(value))
            case _:
                pass
    return {name: sources for name, sources in bound.items() if len(sources) == 1}


def _find_class_constants(tree: ast.Module) -> dict[str, list[Origin]]:
    """Names that classes bind, as their methods say them: any class's of a name that several do."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    found = [pair for node in classes for pair in _find_constants(node.body).items()]
    return {f"self.{n}": [s for o, more in found if o == n for s in more] for n, _ in found}


def _find_locals(function: Function, constants: Names) -> dict[str, list[Origin]]:
    """Names of a function: bound once, or by a loop over a list."""
    inside = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    bound: dict[str, list[Origin]] = _find_constants(inside)
    known = {**constants, **bound}
    for node in inside:
        if isinstance(node, ast.For | ast.AsyncFor):
            for i, target in enumerate(_list_target_names(node.target)):
                rows = _list_rows(node.iter, known)
                one = not isinstance(node.target, ast.Tuple | ast.List)
                cells = [row if one else _get_cell_of_row(row, i) for row in rows]
                bound[target] = [Origin(cell) for cell in cells if cell is not None]
    # What is a parameter too, or bound in another way, is not known.
    others = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    for node in inside:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            others.add(node.target.id)
    return {name: sources for name, sources in bound.items() if name not in others}


def _list_target_names(node: ast.expr) -> Sequence[str]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    return [part.id if isinstance(part, ast.Name) else "" for part in parts]


def _list_rows(node: ast.expr, names: Names) -> Sequence[ast.expr]:
    """The elements of a list that is written out, or named."""
    match node:
        case ast.List(elts=rows) | ast.Tuple(elts=rows):
            return rows
        case ast.Call(func=ast.Attribute(value=value, attr="items"), args=[]):
            table = _resolve_name(value, names)
            if isinstance(table, ast.Dict):
                pairs = zip(table.keys, table.values, strict=True)
                return [ast.Tuple([k, v], ast.Load()) for k, v in pairs if k is not None]
            return []
        case ast.Name():
            other = _resolve_name(node, names)
            return other.elts if isinstance(other, ast.List | ast.Tuple) else []
        case _:
            return []


def _resolve_name(node: ast.expr, names: Names) -> ast.expr:
    if isinstance(node, ast.Name) and len(names.get(node.id, ())) == 1:
        return names[node.id][0].node
    return node


def _get_cell_of_row(row: ast.expr, column: int) -> ast.expr | None:
    match row:
        case ast.Tuple(elts=cells) | ast.List(elts=cells):
            return cells[column] if column < len(cells) else None
        case ast.Call(func=ast.Attribute(attr="param"), args=cells):
            return cells[column] if column < len(cells) else None
        case _:
            return None


def _is_parametrize_mark(mark: ast.expr) -> bool:
    return isinstance(mark, ast.Call) and getattr(mark.func, "attr", "") == "parametrize"


def _list_parameter_values(marks: Sequence[ast.expr], constants: Names) -> dict[str, list[Origin]]:
    """The parameters of a test, each with its values."""
    found: dict[str, list[Origin]] = {}
    for mark in marks:
        match mark:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[first, second, *_]):
                names = _parse_parameter_names(first)
                for i, name in enumerate(names):
                    rows = _list_rows(second, constants)
                    cells = [
                        _get_only_value(row) if len(names) == 1 else _get_cell_of_row(row, i)
                        for row in rows
                    ]
                    found[name] = [
                        Origin(cell, f"c{k}") for k, cell in enumerate(cells) if cell is not None
                    ]
            case _:
                pass
    return found


def _get_only_value(row: ast.expr) -> ast.expr | None:
    is_param = isinstance(row, ast.Call) and getattr(row.func, "attr", "") == "param"
    return _get_cell_of_row(row, 0) if is_param else row


def _parse_parameter_names(node: ast.expr) -> Sequence[str]:
    if not is_literal(node):
        return []
    value: object = ast.literal_eval(node)
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    names = cast("list[object]", value) if isinstance(value, list | tuple) else []
    return [*map(str, names)]
