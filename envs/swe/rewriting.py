"""Test files as they are run: without their words, and with other expected values where wanted.

A test file and its decoys differ in expected values and in nothing else, so what else could tell
them apart is taken out of both: comments, docstrings, messages of assertions, and ids that pytest
makes of values. Each comparison for equality tells the runner that it begins, what it sees, and
whether it held:

    assert total([1, 2]) == 3, "a sum"   ->   assert _agentrl_at('4.7')(
        _agentrl_saw('4.7', 0, total([1, 2])) == _agentrl_saw('4.7', 1, 3))

An assignment that feeds it begins it too. Where a test may go on behind an exception, none begins.
Under a command that is not ours the files themselves load what they call, and say what failed.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from agentrl.envs.swe.report import RUNNER_PLACE
from agentrl.envs.swe.runner import ITEMS, SEQUENCE

Place: TypeAlias = tuple[int, int, int, int]
"""Of an expression in the file as it is: first line and column, last line and column."""
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
SAW: Final = "_agentrl_saw"
_AT: Final = "_agentrl_at"
_EQUALITY: Final = re.compile(
    "assert(Is|Equals?|(List|Tuple|Dict|Set|Sequence|MultiLine|Almost|Count)Equal)"
)
_COMPARED: Final = {"assertCountEqual": ITEMS, "assertSequenceEqual": SEQUENCE}
_NO_SIDES: Final = frozenset({"msg", "places", "delta", "seq_type", None})
"""Their keywords that compare nothing."""
_TELL: Final = "_agentrl_tell"
_LOAD: Final = (
    f"{SAW}, {_AT}, {_TELL} = __import__('runpy').run_path({RUNNER_PLACE!r})['tell_by_log']()"
)
_GOES_ON: Final = (ast.Try, ast.With, ast.AsyncWith, getattr(ast, "TryStar", ast.Try))
"""Behind what is raised within, perhaps."""
_IDS: Final = ast.parse("map('c{}'.format, range(1000000))", mode="eval").body


def place_of(node: ast.expr) -> Place:
    """Where an expression stands."""
    return (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)


def site_of(node: ast.Compare | ast.Call) -> str:
    """The name of a comparison in its file; it ends with what is compared, if not all of it."""
    function = node.func if isinstance(node, ast.Call) else None
    compared = _COMPARED.get(getattr(function, "attr", ""), "")
    return f"{node.lineno}.{node.col_offset}{compared}"


def comparisons(statement: ast.stmt) -> Iterator[tuple[ast.Compare | ast.Call, list[ast.expr]]]:
    """The comparisons for equality that a statement asserts, each with its two sides."""
    match statement:
        case ast.Assert(test=ast.BoolOp(op=ast.And(), values=parts)):
            tests: Sequence[ast.expr] = parts
        case ast.Assert(test=test):
            tests = [test]
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name)) as call):
            named = [keyword for keyword in call.keywords if keyword.arg not in _NO_SIDES]
            named.sort(key=lambda keyword: str(keyword.arg))
            sides = [*call.args, *(keyword.value for keyword in named)][:2]
            is_whole = len(sides) == 2 and not any(isinstance(s, ast.Starred) for s in sides)
            if _EQUALITY.fullmatch(name) and is_whole:
                yield call, sides
            return
        case _:
            return
    for test in tests:
        match test:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
                yield test, [left, right]
            case _:
                pass


def rewrite_tests(text: str, changes: Mapping[Place, str], *, by_log: bool = False) -> str:
    """A test file as it is run.

    Args:
        text: the file as it is.
        changes: Python expressions that take the places of others.
        by_log: what comparisons saw goes to the tests' log, not to our runner.

    Raises:
        SyntaxError: It is no Python.
        ValueError: There is no expression at a place.
    """
    rewriter, tree = _Rewriter(changes, by_log=by_log), ast.parse(text)
    rewriter.visit(tree)
    if by_log:
        first = sum(getattr(node, "module", "") == "__future__" for node in tree.body)
        tree.body[first:first] = ast.parse(_LOAD).body
    ast.fix_missing_locations(tree)
    if rewriter.num_changed != len(changes):
        raise ValueError(f"{len(changes) - rewriter.num_changed} places hold no expression")
    return ast.unparse(tree) + "\n"


class _Rewriter(ast.NodeTransformer):
    """What stands at a place is looked at before its parts."""

    def __init__(self, changes: Mapping[Place, str], *, by_log: bool) -> None:
        self._changes = changes
        self._by_log = by_log
        self._functions = 0
        self._ends = False
        """What is raised here ends the test."""
        self._feeds: Mapping[ast.stmt, str] = {}
        self.num_changed = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and hasattr(node, "lineno"):
            changed = self._changes.get(place_of(node))
            if changed is not None:
                self.num_changed += 1
                return ast.parse(changed, mode="eval").body
        if isinstance(node, ast.stmt):
            _wrap_sides_of_comparisons(node, begins=self._ends)
        if self._ends and node in self._feeds and isinstance(node, ast.Assign):
            node.value = _wrap_value_in_site_call(self._feeds[node], node.value)
        if isinstance(node, ast.Assert):
            node.msg = None
        if isinstance(node, ast.Call):
            _drop_messages_and_ids(node)
        if self._by_log:
            _add_failure_teller_to_subtest(node)
        return self._rewrite_node_and_children(node)

    def _rewrite_node_and_children(self, node: ast.AST) -> ast.AST:
        # A function within a test is what a test asks about, and its docstring may be.
        is_function = isinstance(node, Function)
        if self._functions == 0 and (is_function or isinstance(node, ast.Module | ast.ClassDef)):
            _drop_docstring(node)
            if self._by_log and isinstance(node, Function) and node.name.startswith("test"):
                case = [ast.Name(a.arg, ast.Load()) for a in node.args.args[:1]]
                node.body = [ast.With([_make_failure_teller(case)], node.body)]
        before = self._ends, self._feeds
        if isinstance(node, Function):
            self._ends = self._functions == 0 and node.name.startswith("test")
            self._feeds = _map_assignments_to_comparisons(node)
        elif isinstance(node, _GOES_ON):
            self._ends = self._ends and _is_subtest_or_own_context(node)
        self._functions += is_function
        self.generic_visit(node)
        self._functions -= is_function
        self._ends, self._feeds = before
        return node


def _map_assignments_to_comparisons(function: Function) -> dict[ast.stmt, str]:
    """The assignments of what a call gives, each with the next comparison that names it."""
    found: dict[ast.stmt, str] = {}
    bound: dict[str, ast.stmt] = {}
    # Those of the file itself, without what was put around them.
    statements = (n for n in ast.walk(function) if isinstance(n, ast.stmt) and hasattr(n, "lineno"))
    for statement in sorted(statements, key=lambda node: (node.lineno, node.col_offset)):
        for comparison, _ in comparisons(statement):
            for name in _list_variable_names(comparison):
                if name in bound:
                    found.setdefault(bound[name], site_of(comparison))
        if isinstance(statement, ast.Assign):
            calls = any(isinstance(node, ast.Call) for node in ast.walk(statement.value))
            for name in itertools.chain.from_iterable(map(_list_variable_names, statement.targets)):
                bound.pop(name, None)
                bound.update({name: statement} if calls else {})
    return found


def _list_variable_names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _is_subtest_or_own_context(node: ast.AST) -> bool:
    """True for the contexts of subtests, and our own."""
    calls = [item.context_expr for item in getattr(node, "items", ())]
    names = [getattr(call, "func", None) for call in calls]
    told = [getattr(name, "attr", None) or getattr(name, "id", None) for name in names]
    return bool(told) and {"subTest", _TELL}.issuperset(told)


def _wrap_value_in_site_call(site: str, value: ast.expr) -> ast.expr:
    begun = ast.Call(ast.Name(_AT, ast.Load()), args=[ast.Constant(site)], keywords=[])
    return ast.Call(begun, args=[value], keywords=[])


def _make_failure_teller(case: Sequence[ast.expr], *more: ast.keyword) -> ast.withitem:
    """What tells of a failure inside."""
    return ast.withitem(ast.Call(ast.Name(_TELL, ast.Load()), args=[*case], keywords=[*more]))


def _add_failure_teller_to_subtest(node: ast.AST) -> None:
    """What fails within a subtest goes no further than that."""
    match node:
        case ast.With(items=[ast.withitem(ast.Call(ast.Attribute(case, "subTest"))), *_]):
            node.items.append(
                _make_failure_teller([case], ast.keyword("inside", ast.Constant(value=True)))
            )
        case _:
            pass


def _wrap_sides_of_comparisons(statement: ast.stmt, *, begins: bool) -> None:
    ends: dict[ast.expr, ast.expr] = {}
    for node, sides in comparisons(statement):
        told: list[ast.expr] = []
        for side, value in enumerate(sides):
            about = [ast.Constant(site_of(node)), ast.Constant(side), value]
            told.append(ast.Call(ast.Name(SAW, ast.Load()), args=about, keywords=[]))
        if isinstance(node, ast.Compare):
            node.left, node.comparators = told[0], told[1:]
        else:
            node.args[:2] = told
            node.keywords = [k for k in node.keywords if k.arg in _NO_SIDES]
        is_none = ast.Compare(node, [ast.Is()], [ast.Constant(None)])
        held = node if isinstance(node, ast.Compare) else is_none
        ends[node] = _wrap_value_in_site_call(site_of(node) if begins else "", held)
    match statement:
        case ast.Assert(test=ast.BoolOp(values=parts)):
            parts[:] = [ends.get(part, part) for part in parts]
        case ast.Assert(test=test):
            statement.test = ends.get(test, test)
        case ast.Expr(value=value):
            statement.value = ends.get(value, value)
        case _:
            pass


def _drop_messages_and_ids(call: ast.Call) -> None:
    """Messages, and ids that a value or a hand has made; their number stays."""
    name = str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))
    is_equality = _EQUALITY.fullmatch(name)
    word = "msg" if is_equality else {"param": "id", "parametrize": "ids"}.get(name)
    call.keywords = [keyword for keyword in call.keywords if not word or keyword.arg != word]
    if is_equality:
        del call.args[2 if name != "assertAlmostEqual" else 4 :]
    elif name == "parametrize":
        call.keywords.append(ast.keyword(arg="ids", value=_IDS))
        del call.args[3:]
    elif name == "fixture":
        # Fixtures take all ids at once, so that there have to be as many as parameters.
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        params = named.get("params")
        if isinstance(params, ast.List | ast.Tuple):
            ids = ast.List([ast.Constant(f"c{i}") for i in range(len(params.elts))], ast.Load())
            call.keywords = [*(k for k in call.keywords if k.arg != "ids"), ast.keyword("ids", ids)]


def _drop_docstring(node: ast.AST) -> None:
    body: list[ast.stmt] = getattr(node, "body", [])
    match body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()))]:
            body[:1] = [] if len(body) > 1 or isinstance(node, ast.Module) else [ast.Pass()]
        case _:
            pass
