"""Which bugs are tried, in which order: every kind and every file gets its turn."""

import ast
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.envs.swe.build.operators import OPERATORS, changed_names
from agentrl.envs.swe.build.records import Mutation
from agentrl.envs.swe.build.source import NotMutable, PackageSource, position


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A bug that could be planted."""

    mutation: Mutation
    function: str
    """The qualified name of the function that it is in."""
    names: frozenset[str]
    """What must not be said of it."""


def candidates(
    root: Path, sources: Iterable[str], lines: Mapping[str, frozenset[int]]
) -> list[Candidate]:
    """Every bug on a line that the suite runs."""
    found: list[Candidate] = []
    for file in sources:
        try:
            source = PackageSource((root / file).read_bytes())
        except NotMutable:
            continue  # in another encoding, say: there are other files
        found += _list_file_bugs(source, file, lines.get(file, frozenset()))
    return found


def _list_file_bugs(source: PackageSource, file: str, lines: frozenset[int]) -> Iterator[Candidate]:
    for node in source.nodes():
        if node.lineno not in lines:
            continue
        function, name = source.functions.get(node, (node, getattr(node, "name", "")))
        if isinstance(function, ast.FunctionDef) and _is_plumbing_method(function.name):
            continue
        for kind, operator in OPERATORS.items():
            for edit in operator(source, node):
                mutation = Mutation(
                    file=file,
                    sha256=source.sha256,
                    node=position(node),
                    operator=kind,
                    to=edit.to,
                )
                names = changed_names(source, node, edit)
                yield Candidate(mutation=mutation, function=f"{file}:{name}", names=names)


def _is_plumbing_method(name: str) -> bool:
    """True for methods that nobody would report a bug of."""
    return name in ("__repr__", "__str__", "__del__", "__reduce__", "__getstate__", "__setstate__")


class Chooser:
    """Hands out candidates: of the kind and the file that have fewest tasks so far, at random."""

    def __init__(self, found: Sequence[Candidate], rng: random.Random, per_file: int) -> None:
        self._left = [*found]
        rng.shuffle(self._left)
        self._per_file = per_file
        self.kinds: Counter[str] = Counter()
        self._tried: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Candidate]:
        while self._left:
            best = min(range(len(self._left)), key=lambda i: self._rank_candidate(self._left[i]))
            candidate = self._left.pop(best)
            if self.files[candidate.mutation.file] < self._per_file:
                self._tried[candidate.mutation.operator] += 1
                yield candidate

    def keep(self, candidate: Candidate) -> None:
        """It became a task."""
        self.kinds[candidate.mutation.operator] += 1
        self.files[candidate.mutation.file] += 1
        self._functions[candidate.function] += 1

    def _rank_candidate(self, candidate: Candidate) -> tuple[int, int, int]:
        kind = candidate.mutation.operator
        return (
            self._functions[candidate.function],
            3 * self.kinds[kind] + self._tried[kind],
            self.files[candidate.mutation.file],
        )


def words_of(test: str) -> frozenset[str]:
    """The names in a test's id: its file, class and function."""
    return frozenset(re.findall(r"\w+", re.sub(r"\[.*|\.py\b", "", test).replace("/", " ")))
