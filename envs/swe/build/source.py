"""A Python source text with its syntax tree, and pieces of it that are replaced."""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Node: TypeAlias = ast.stmt | ast.expr | ast.excepthandler
Position: TypeAlias = tuple[int, int, int, int]
"""First line and column, last line and column, as `ast` counts: lines from 1, columns in bytes."""
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class NotMutable(ValueError):
    """A file that cannot be taken apart and put together again byte by byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEdit:
    """One replaced piece of a text; `to` tells it from the operator's other edits of the node."""

    start: int
    end: int
    text: str
    to: str


class PackageSource:
    """One file's text and tree."""

    def __init__(self, data: bytes) -> None:
        """Parse a file.

        Raises:
            NotMutable: It is no UTF-8 or no Python, or has line ends other than a newline.
        """
        self.sha256 = hashlib.sha256(data).hexdigest()
        try:
            self.text = data.decode("utf-8")
            self.tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise NotMutable(str(error)) from error
        if re.search("[\r\f\v]", self.text):
            raise NotMutable("it has line ends other than a newline")
        self._lines = self.text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        """The index in the text of a place in the tree."""
        in_line = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(in_line)

    def span(self, node: Node | ast.keyword | ast.arg) -> tuple[int, int]:
        """Where a node begins and ends in the text."""
        line, column, end_line, end_column = position(node)
        return self.offset(line, column), self.offset(end_line, end_column)

    def segment(self, node: Node | ast.keyword | ast.arg) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.text[start:end]

    @cached_property
    def functions(self) -> dict[ast.AST, tuple[Function, str]]:
        """The innermost function of each node inside of one, and its qualified name."""
        found: dict[ast.AST, tuple[Function, str]] = {}

        def visit(node: ast.AST, inside: tuple[Function, str] | None, path: str) -> None:
            for child in ast.iter_child_nodes(node):
                around, below = inside, path
                if isinstance(child, Function | ast.ClassDef):
                    below = f"{path}.{child.name}" if path else child.name
                    if isinstance(child, Function):
                        around = (child, below)
                if around is not None:
                    found[child] = around
                visit(child, around, below)

        visit(self.tree, None, "")
        return found

    def nodes(self) -> Iterator[Node]:
        """Functions and what is in them, without annotations, decorators and f-strings."""
        functions = {id(f): f for f, _ in self.functions.values()}.values()
        skipped: set[ast.AST] = set()
        for function in functions:
            outside = [*function.decorator_list, function.returns]
            inner = ast.walk(function)
            outside += [n.annotation for n in inner if isinstance(n, ast.arg | ast.AnnAssign)]
            skipped.update(n for top in outside if top is not None for n in ast.walk(top))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.JoinedStr):  # until Python 3.12 the places in it are wrong
                skipped.update(ast.walk(node))
        for node in ast.walk(self.tree):
            inside = node in self.functions or isinstance(node, Function)
            if inside and node not in skipped and isinstance(node, Node):
                yield node

    def replaced(self, *edits: SourceEdit) -> str:
        """The text with pieces replaced.

        Raises:
            NotMutable: Two of them overlap.
        """
        text, before = self.text, len(self.text) + 1
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            if edit.end > before:
                raise NotMutable("two edits overlap")
            text, before = text[: edit.start] + edit.text + text[edit.end :], edit.start
        return text


def position(node: Node | ast.keyword | ast.arg) -> Position:
    """The place of a node."""
    end_line, end_column = node.end_lineno, node.end_col_offset
    return node.lineno, node.col_offset, end_line or 0, end_column or 0  # `ast.parse` sets them
