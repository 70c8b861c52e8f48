import ast
import textwrap
from collections.abc import Iterator

import pytest

from agentrl.envs.swe.build.operators import OPERATORS, changed_names
from agentrl.envs.swe.build.records import Mutation, find
from agentrl.envs.swe.build.source import Node, NotMutable, PackageSource, SourceEdit, position

WHOLE = '''
"""Ä module with an umlaut before its code."""
import re


def area(width: int = 1, height=2, *, unit="cm", strict=True):
    """An area."""
    if width < 0 or not height:
        raise ValueError("no area")
    total = width * height + 1  # ö
    for i in range(total):
        if i == 7 and strict:
            break
        total += i
    try:
        return convert(total, unit, digits=2).strip()
    except KeyError:
        return None if total is None else "äö"[1:total] + unit.lower()


class Shelf:
    def put(self, item):
        self.items.append(item)
        return f"{item + 1} of {len(self.items)}"
'''


def edits(source: PackageSource, operator: str) -> Iterator[tuple[Node, SourceEdit]]:
    for node in source.nodes():
        for edit in OPERATORS[operator](source, node):
            yield node, edit


def bodies(operator: str, body: str, parameters: str = "a, b, c") -> list[str]:
    """What an operator makes of a function's body."""
    head = f"def f({parameters}):\n"
    source = PackageSource((head + textwrap.indent(body, "    ")).encode())
    texts = [source.replaced(edit) for _, edit in edits(source, operator)]
    return sorted(textwrap.dedent(text.partition(":\n")[2]) for text in texts)


@pytest.mark.parametrize(
    ("operator", "body", "expected"),
    [
        ("boundary", "return a < b", ["return a <= b"]),
        ("boundary", "return a >= (b)", ["return a > (b)"]),
        ("boundary", "return a < b < c", []),
        ("comparison", "return a not  in b", ["return a in b"]),
        ("comparison", "return isin is None", ["return isin is not None"]),
        ("arithmetic", "return (a) + b * c", ["return (a) + b + c", "return (a) - b * c"]),
        ("arithmetic", "return 'x%s' % a", []),
        ("logic", "return a and b", ["return a or b"]),
        ("condition", "if not a:\n    pass", ["if a:\n    pass"]),
        ("condition", "return b if a else c", ["return b if not (a) else c"]),
        ("missing_condition", "return a or b", ["return (a)", "return (b)"]),
        ("off_by_one", "return a[0]", ["return a[(-1)]", "return a[1]"]),
        ("off_by_one", "return a[True]", []),
        ("flag", "return g(x=True)", ["return g(x=False)"]),
        ("missing_call", "return len(a)", ["return (a)"]),
        ("missing_call", "return a.strip()", ["return a"]),
        ("missing_call", "return g(a, b)", []),
        ("missing_statement", "g(a)", ["pass"]),
        ("missing_statement", "a.x = b", ["pass"]),
        ("missing_statement", "x = b", []),
        ("wrong_variable", "x = a\nreturn x", ["x = a\nreturn a", "x = a\nreturn b",
         "x = a\nreturn c", "x = b\nreturn x", "x = c\nreturn x"]),
        ("exception", "raise KeyError(a)", ["raise IndexError(a)"]),
        ("exception", "raise Mine(a)", []),
        ("missing_argument", "return g(a, x=b, y=c)", ["return g(a, x=b)", "return g(a, y=c)"]),
        ("swapped_arguments", "return g(a, b)", ["return g(b, a)"]),
        ("swapped_arguments", "return isinstance(a, b)", []),
        ("missing_return", "return a", ["return None"]),
        ("missing_return", "return None", []),
        ("loop", "while a:\n    break", ["while a:\n    continue"]),
        ("slice_bound", "return a[1:b]", ["return a[1:]", "return a[:b]"]),
        ("assignment", "a += b", ["a -= b", "a = b"]),
        ("wrong_method", "return a.startswith(b)", ["return a.endswith(b)"]),
        ("wrong_method", "return min(a)", ["return max(a)"]),
    ],
)  # fmt: skip
def test_an_operator(operator: str, body: str, expected: list[str]) -> None:
    assert bodies(operator, body) == sorted(expected)


def test_a_default_is_another_one() -> None:
    source = PackageSource(b"def f(a, b=1, c='x', *, d=True, e=None):\n    return a\n")
    made = {source.replaced(edit).split("\n")[0] for _, edit in edits(source, "default")}
    assert made == {
        "def f(a, b=2, c='x', *, d=True, e=None):",
        "def f(a, b=1, c='', *, d=True, e=None):",
        "def f(a, b=1, c='x', *, d=False, e=None):",
    }


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_edit_is_made_again_from_its_record(operator: str) -> None:
    source = PackageSource(WHOLE.encode())
    made: set[tuple[object, str]] = set()
    for node, edit in edits(source, operator):
        assert (position(node), edit.to) not in made  # else a record would be ambiguous
        made.add((position(node), edit.to))
        mutation = Mutation(
            file="a.py", sha256=source.sha256, node=position(node), operator=operator, to=edit.to
        )
        again = Mutation.model_validate_json(mutation.model_dump_json())
        assert find(source, again)[1] == edit
        assert ast.dump(ast.parse(source.replaced(edit))) != ast.dump(source.tree)
    assert made or operator in ("wrong_method", "swapped_arguments", "slice_bound", "assignment")


def test_annotations_and_f_strings_are_left_alone() -> None:
    source = PackageSource(b'@d(1)\ndef f(a: "x[2]" = 0) -> g(3):\n    return f"{a + 4}"\n')
    assert [source.segment(node) for node, _ in edits(source, "off_by_one")] == ["0", "0"]
    assert list(edits(source, "arithmetic")) == []


def test_what_must_not_be_said_are_the_names_of_function_and_edit() -> None:
    source = PackageSource(WHOLE.encode())
    ((node, edit),) = [(n, e) for n, e in edits(source, "exception") if e.to == "IndexError"]
    assert changed_names(source, node, edit) == {"area", "KeyError", "IndexError"}
    node, edit = next(edits(source, "missing_statement"))
    assert changed_names(source, node, edit) >= {"area", "total", "i"}


@pytest.mark.parametrize("data", [b"def f(:", b"\xff", b"a = 1\r\n", b"a = 1\x0c\n", b"a\0"])
def test_files_that_could_not_be_put_together_again_are_refused(data: bytes) -> None:
    with pytest.raises(NotMutable):
        PackageSource(data)


def test_overlapping_edits_are_refused() -> None:
    source = PackageSource(b"def f(a):\n    return a\n")
    edit = SourceEdit(start=1, end=5, text="", to="")
    with pytest.raises(NotMutable):
        source.replaced(edit, SourceEdit(start=4, end=8, text="", to=""))
