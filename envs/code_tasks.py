"""Small programming tasks, made by a seed: what `code_sandbox` asks for when it has no file."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from agentrl.types import Task

NUM_TESTS: Final = 8
Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks that differ by a number `k`."""

    words: str
    """What the function does; `{k}` is the number."""
    source: str
    """The body of a solution, with the argument `x`."""
    argument: Callable[[Generator], Any]
    numbers: tuple[int, ...]


def _ints(rng: Generator) -> list[int]:
    size = int(rng.integers(0, 12))
    return [int(n) for n in rng.integers(-50, 50, size=size)]


def _number(rng: Generator) -> int:
    return int(rng.integers(0, 60))


def _word(rng: Generator) -> str:
    letters = rng.choice(list("aabbcdeino "), size=int(rng.integers(0, 14)))
    return " ".join("".join(letters).split())


FAMILIES: Final = (
    Family("returns the sum of the integers in list x that are divisible by {k}",
           "return sum(n for n in x if n % {k} == 0)", _ints, (2, 3, 4, 5, 6, 7)),
    Family("returns list x without its elements that are smaller than {k}, in the same order",
           "return [n for n in x if n >= {k}]", _ints, (-20, -10, 0, 5, 10, 20)),
    Family("returns the {k} largest integers of list x, largest first, or fewer if x is shorter",
           "return sorted(x, reverse=True)[:{k}]", _ints, (1, 2, 3, 4, 5)),
    Family("returns list x rotated to the left by {k} places",
           "k = {k} % len(x) if x else 0\nreturn x[k:] + x[:k]", _ints, (1, 2, 3, 4, 5)),
    Family("returns the sum of the digits of x, where x is an integer, times {k}",
           "return sum(int(d) for d in str(x)) * {k}", _number, (1, 2, 3, 4, 5)),
    Family("returns the Fibonacci number of index x (0, 1, 1, 2, ...) modulo {k}",
           "a, b = 0, 1\nfor _ in range(x):\n    a, b = b, a + b\nreturn a % {k}",
           _number, (7, 10, 13, 97, 100)),
    Family("returns the words of string x that have at least {k} letters, as a list",
           "return [w for w in x.split() if len(w) >= {k}]", _word, (1, 2, 3, 4)),
    Family("returns string x with every letter repeated {k} times and spaces removed",
           "return ''.join(c * {k} for c in x if c != ' ')", _word, (2, 3, 4)),
)  # fmt: skip

_FUNCTION: Final = (
    "Write solution.py with a function solve(x) that {words}. It is tested on other inputs. "
    "Example: solve({argument}) == {result}"
)
_PROGRAM: Final = (
    "Write solution.py, a program that reads a JSON value x from standard input and prints, as "
    "JSON, what a function would return that {words}. It is tested on other inputs. "
    "Example: {argument} gives {result}"
)
_MAIN: Final = (
    "import json\nimport sys\n\n{function}\nprint(json.dumps(solve(json.load(sys.stdin))))\n"
)


def draw(rng: Generator) -> tuple[Family, int, bool]:
    """A family, its number, and whether it is to be a whole program."""
    family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    return family, int(rng.choice(family.numbers)), bool(rng.integers(2))


def make(rng: Generator, family: Family, k: int, *, program: bool) -> Task:
    """The task with its tests; the solution is ours, so it may run here."""
    body = family.source.replace("{k}", str(k)).replace("\n", "\n    ")
    function = f"def solve(x):\n    {body}\n"
    names: dict[str, Any] = {}
    exec(function, names)
    arguments = [family.argument(rng) for _ in range(NUM_TESTS + 1)]
    results = [names["solve"](argument) for argument in arguments]
    pairs = list(zip(arguments, results, strict=True))
    tests: list[dict[str, Any]] = [{"args": [a], "expected": r} for a, r in pairs]
    if program:
        tests = [{"stdin": json.dumps(a), "stdout": json.dumps(r)} for a, r in pairs]
    show = json.dumps if program else repr
    return Task(
        prompt=(_PROGRAM if program else _FUNCTION).format(
            words=family.words.format(k=k), argument=show(arguments[0]), result=show(results[0])
        ),
        answer=tests[1:],
        data={"solution": _MAIN.format(function=function) if program else function},
    )
