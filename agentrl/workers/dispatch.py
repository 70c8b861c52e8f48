"""How a call reaches the workers of a group, and what becomes of their results.

    @on_first     the first worker alone                      -> its result
    @on_all       all, with the same arguments                -> the first one's result
    @gathered     all, with the same arguments                -> the results in order
    @by_replica   each replica with its item of each argument -> the results in order
    @summed       all, with the same arguments                -> the sum of the results
    @streamed     all; each yields, one item at a time        -> what the first one yields

A method of what the workers hold declares one of them; `WorkerGroup.call` does it. Splits and joins
know no worker: they are functions of values. A replica is a run of workers that share their work.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from agentrl.errors import ConfigError

H = TypeVar("H")
H_contra = TypeVar("H_contra", contravariant=True)
J = TypeVar("J")
J_co = TypeVar("J_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """What one worker is called with."""

    args: tuple[Any, ...]
    options: Mapping[str, Any]
    is_answered: bool = True
    """False: nobody reads the result, which stays where it is."""


Split = Callable[[CallArguments, int], Sequence[CallArguments | None]]
"""What each of so many workers gets; None: it is not called."""


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[T, J]):
    """How one method is called on a group."""

    split: Split
    join: Callable[[Sequence[T]], J]
    """From the results of those that were called, in order."""


class Method(Protocol[H_contra, P, T_co, J_co]):
    """A method that says how a group calls it; the group's call returns J."""

    __name__: str

    def __call__(self, held: H_contra, /, *args: P.args, **options: P.kwargs) -> T_co:
        """On one worker."""
        ...

    def of_group(self) -> J_co:
        """Nothing has this at run time: it carries the type."""
        ...


def dispatch_of(method: Method[H, P, T, J]) -> Dispatch[T, J]:
    """What the method declared.

    Raises:
        ConfigError: nothing.
    """
    found: Dispatch[T, J] | None = getattr(method, "__dispatch__", None)
    if found is None:
        raise ConfigError(
            f"{getattr(method, '__qualname__', method)} says not how a group calls it; decorate it "
            "with one of agentrl.workers.dispatch, such as @on_all"
        )
    return found


def to_all(given: CallArguments, size: int) -> Sequence[CallArguments]:
    """The same for each, and each answers."""
    return [given] * size


def to_all_for_one(given: CallArguments, size: int) -> Sequence[CallArguments]:
    """The same for each; the first answers."""
    return [given, *[replace(given, is_answered=False)] * (size - 1)]


def to_first(given: CallArguments, size: int) -> Sequence[CallArguments | None]:
    """The first alone is called."""
    return [given, *[None] * (size - 1)]


def to_replicas(given: CallArguments, size: int) -> Sequence[CallArguments]:
    """To each replica its item of each argument; items say how many replicas there are.

    Raises:
        ConfigError: arguments have not equally many items, or workers cannot be shared out so.
    """
    named = dict([*enumerate(given.args), *given.options.items()])
    num = len(next(iter(named.values()), range(size)))
    for name, value in named.items():
        if len(value) != num or not num or size % num:
            raise ConfigError(
                f"argument {name}: got {len(value)} items, expected one for each replica of "
                f"{size} workers"
            )
    items = [
        CallArguments(
            tuple(value[i] for value in given.args),
            {name: value[i] for name, value in given.options.items()},
        )
        for i in range(num)
    ]
    return [items[worker * num // size] for worker in range(size)]


def first(results: Sequence[T]) -> T:
    """The first result."""
    return results[0]


def total(results: Sequence[Any]) -> Any:
    """The sum, added up in the order of the workers."""
    return reduce(add, results)


_ON_FIRST: Final[Dispatch[Any, Any]] = Dispatch(to_first, first)
_ON_ALL: Final[Dispatch[Any, Any]] = Dispatch(to_all_for_one, first)
_GATHERED: Final[Dispatch[Any, Any]] = Dispatch(to_all, list)
_BY_REPLICA: Final[Dispatch[Any, Any]] = Dispatch(to_replicas, list)
_SUMMED: Final[Dispatch[Any, Any]] = Dispatch(to_all, total)


def on_first(method: Callable[Concatenate[H, P], T]) -> Method[H, P, T, T]:
    """The first worker alone; its result."""
    return _declare(method, _ON_FIRST)


def on_all(method: Callable[Concatenate[H, P], T]) -> Method[H, P, T, T]:
    """All workers with the same arguments; the first one's result."""
    return _declare(method, _ON_ALL)


def gathered(method: Callable[Concatenate[H, P], T]) -> Method[H, P, T, list[T]]:
    """All workers with the same arguments; all results in order."""
    return _declare(method, _GATHERED)


def by_replica(method: Callable[Concatenate[H, ...], T]) -> Method[H, ..., T, list[T]]:
    """Each replica with its own item of each argument; the results of all workers in order."""
    return _declare(method, _BY_REPLICA)


def summed(method: Callable[Concatenate[H, P], T]) -> Method[H, P, T, T]:
    """All workers with the same arguments; the sum of their results."""
    return _declare(method, _SUMMED)


def streamed(
    method: Callable[Concatenate[H, P], Iterator[T]],
) -> Method[H, P, Iterator[T], Iterator[T]]:
    """All workers; the items of the first, which come one at a time while all go on together."""
    return _declare(method, _ON_ALL)


def _declare(
    method: Callable[..., Any], dispatch: Dispatch[Any, Any]
) -> Method[Any, Any, Any, Any]:
    method.__dispatch__ = dispatch  # type: ignore[attr-defined]  # functions take attributes
    return cast("Method[Any, Any, Any, Any]", method)
