"""Small programming tasks, made by a seed: what `code_sandbox` asks for when it has no file.

The hidden tests are chosen so that wrong programs fail one of them: those for another number, and
the reference with a small bug.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from agentrl.envs.swe.build.operators import OPERATORS
from agentrl.envs.swe.build.source import PackageSource
from agentrl.types import Task

NUM_TESTS: Final = 8
"""At least; more where so many do not tell each wrong program from the right one."""
_POOL: Final = 400
"""So many arguments are drawn to choose from."""
_NEIGHBOURS: Final = (-3, -2, -1, 1, 2, 3)
_FAILED: Final = "failed"
_RESULTS: Final = (
    *("y[:-1]", "y[1:]", "y[::-1]", "y + y[:1]", "sorted(y)"),
    *("y + 1", "y - 1", "-y", "abs(y)", "y * 2", "y or None"),
)
_ARGUMENTS: Final = (
    *("x[1:]", "x[:-1]", "x[::-1]", "sorted(x)", "list(dict.fromkeys(x))"),
    *("x + 1", "x - 1", "x * 2", "x // 10"),
)
"""What careless programs do to the result `y`, and to the argument."""
Program = Callable[[Any], Any]
Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks that differ by a number `k`."""

    words: str
    """What the function does; `{k}` is the number."""
    source: str
    """The body of a solution, with the argument `x`."""
    argument: Callable[[Generator, int], Any]
    """Draws one, near the number now and then."""
    numbers: tuple[int, ...]


def _draw_int_list(rng: Generator, k: int) -> list[int]:
    size = int(rng.integers(0, 12))
    found = [int(n) for n in rng.integers(-50, 50, size=size)]
    near = [int(n) for n in rng.integers(k - 3, k + 4, size=size)]
    return [a if rng.random() < 0.7 else b for a, b in zip(found, near, strict=True)]


def _draw_number_below_60(rng: Generator, k: int) -> int:
    return int(rng.integers(0, 60))


def _draw_spaced_letters(rng: Generator, k: int) -> str:
    letters = rng.choice(list("aabbcdeino   "), size=int(rng.integers(0, 20)))
    return " ".join("".join(letters).split())


FAMILIES: Final = (
    Family("returns the sum of the integers in list x that are divisible by {k}",
           "return sum(n for n in x if n % {k} == 0)", _draw_int_list, (2, 3, 4, 5, 6, 7)),
    Family("returns list x without its elements that are smaller than {k}, in the same order",
           "return [n for n in x if n >= {k}]", _draw_int_list, (-20, -10, 0, 5, 10, 20)),
    Family("returns the {k} largest integers of list x, largest first, or fewer if x is shorter",
           "return sorted(x, reverse=True)[:{k}]", _draw_int_list, (1, 2, 3, 4, 5)),
    Family("returns list x rotated to the left by {k} places",
           "k = {k} % len(x) if x else 0\nreturn x[k:] + x[:k]", _draw_int_list, (1, 2, 3, 4, 5)),
    Family("returns the sum of the digits of x, where x is an integer, times {k}",
           "return sum(int(d) for d in str(x)) * {k}", _draw_number_below_60, (1, 2, 3, 4, 5)),
    Family("returns the Fibonacci number of index x (0, 1, 1, 2, ...) modulo {k}",
           "a, b = 0, 1\nfor _ in range(x):\n    a, b = b, a + b\nreturn a % {k}",
           _draw_number_below_60, (7, 10, 13, 97, 100)),
    Family("returns the words of string x that have at least {k} letters, as a list",
           "return [w for w in x.split() if len(w) >= {k}]", _draw_spaced_letters, (1, 2, 3, 4)),
    Family("returns string x with every letter repeated {k} times and spaces removed",
           "return ''.join(c * {k} for c in x if c != ' ')", _draw_spaced_letters, (2, 3, 4)),
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
    function = solution_of(family, k)
    solve = compiled(function)
    example = family.argument(rng, k)
    tests: list[dict[str, Any]] = []
    for argument in choose_arguments(rng, family, k):
        result = solve(argument)
        if program:
            tests.append({"stdin": json.dumps(argument), "json": result})
        else:
            tests.append({"args": [argument], "expected": result})
    show = json.dumps if program else repr
    return Task(
        prompt=(_PROGRAM if program else _FUNCTION).format(
            words=family.words.format(k=k), argument=show(example), result=show(solve(example))
        ),
        answer=tests,
        data={"solution": _MAIN.format(function=function) if program else function},
    )


def solution_of(family: Family, k: int) -> str:
    """The text of the function `solve`."""
    body = family.source.replace("{k}", str(k)).replace("\n", "\n    ")
    return f"def solve(x):\n    {body}\n"


def compiled(text: str) -> Program:
    """The function `solve` of a text of ours."""
    names: dict[str, Any] = {}
    exec(text, names)
    solve: Program = names["solve"]
    return solve


def choose_arguments(rng: Generator, family: Family, k: int) -> list[Any]:
    """Arguments on which every wrong program gives another result than the right one, somewhere.

    A wrong program that gives the right results for all that was drawn to choose from is taken for
    a right one.
    """
    pool = list({repr(a): a for a in (family.argument(rng, k) for _ in range(_POOL))}.values())
    solve = compiled(solution_of(family, k))
    right = [_run_program_as_json(solve, argument) for argument in pool]
    fooled = [
        {i for i, argument in enumerate(pool) if _run_program_as_json(wrong, argument) == right[i]}
        for wrong in wrong_programs(family, k)
    ]
    chosen: list[int] = []
    left = [same for same in fooled if len(same) < len(pool)]
    while left or len(chosen) < NUM_TESTS:
        # The one that most of the programs that are left get wrong; the first of these.
        wrong = [sum(i not in same for same in left) for i in range(len(pool))]
        best = max((i for i in range(len(pool)) if i not in chosen), key=lambda i: wrong[i])
        chosen.append(best)
        left = [same for same in left if best in same]
    return [pool[i] for i in chosen]


@functools.cache
def wrong_programs(family: Family, k: int) -> Sequence[Program]:
    """Programs for other numbers, and the right one with a bug each."""
    others = {*family.numbers, *(k + step for step in _NEIGHBOURS)} - {k, 0}
    texts = [solution_of(family, other) for other in sorted(others)]
    right = solution_of(family, k)
    around = f"def right(x):\n{right.partition(chr(10))[2]}\ndef solve(x):\n    "
    texts += [f"{around}return right({argument})\n" for argument in _ARGUMENTS]
    texts += [f"{around}y = right(x)\n    return {result}\n" for result in _RESULTS]
    return [compiled(text) for text in dict.fromkeys([*texts, *_make_buggy_programs(right)])]


def _make_buggy_programs(text: str) -> Iterator[str]:
    source = PackageSource(text.encode())
    for node in source.nodes():
        for operator in OPERATORS.values():
            for edit in operator(source, node):
                broken = source.replaced(edit)
                try:
                    compile(broken, "solution", "exec")
                except SyntaxError:
                    continue
                yield broken


def _run_program_as_json(solve: Program, argument: Any) -> str:
    """What a program gives, as text; how it fails does not matter."""
    try:
        return json.dumps(solve(argument))
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError):
        return _FAILED
