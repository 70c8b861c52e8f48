"""`WorkerGroup`: one object whose methods run on several workers, wherever those are.

    group.call(Replica.update, batch) ─ split ─▶ worker 0   update(held, batch) ─┐
                                               ▶ worker 1   update(held, batch) ─┴ join ─▶ Future

Calls are done one after the other, each by all of its workers at once: they may wait for each other
inside. One that fails alone leaves the others waiting, so all are stopped then. If all raise the
same error, they agree, and go on.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from agentrl.aio import run
from agentrl.errors import AgentrlError, RunError
from agentrl.workers.calls import WorkerDied
from agentrl.workers.dispatch import CallArguments, Method, dispatch_of, on_all
from agentrl.workers.executors import Seat, WorkerCall, Workers

H = TypeVar("H", covariant=True)
J = TypeVar("J")
K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")

_GRACE_S: Final = 5.0
"""How long the other workers may take to say what they saw, once one has failed."""

Explain = Callable[[str, Sequence[BaseException | None]], BaseException]
"""The error of a call by its name, from what each worker raised; at least one did."""


def run_here(fn: Callable[..., T], held: object, given: CallArguments) -> T:
    """How a worker does a call, unless a group says otherwise."""
    return fn(held, *given.args, **given.options)


def explain_by_first(name: str, errors: Sequence[BaseException | None]) -> BaseException:
    """A worker that died is the cause of all else; then the first that raised is."""
    found = [(error, number) for number, error in enumerate(errors) if error is not None]
    error, number = min(found, key=lambda item: not isinstance(item[0], WorkerDied))
    if isinstance(error, WorkerDied):
        return RunError(f"worker {number} of {len(errors)} ended during {name} ({error})")
    return error


class WorkerGroup(Generic[H]):
    """Workers that hold an H each."""

    def __init__(
        self,
        workers: Workers,
        *,
        explain: Explain = explain_by_first,
        run_call: Callable[[Callable[..., Any], Any, CallArguments], Any] = run_here,
        noun: str = "worker",
    ) -> None:
        """Take over the workers, which are ended with the group.

        Args:
            workers: of an executor.
            explain: which of their errors is the cause.
            run_call: called on the worker; it may say more of what the method raises.
            noun: what messages call a worker.
        """
        self._workers, self._explain, self._run_call = workers, explain, run_call
        self._noun, self._size = noun, len(workers)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"agentrl-{noun}s")
        self.num_bytes = 0
        """Of all arguments that were sent to workers elsewhere."""
        self._closing, self._is_closed, self._in_call = Lock(), False, Lock()

    @classmethod
    def seated(cls, workers: Workers, **options: Any) -> "WorkerGroup[Seat]":
        """A group whose workers hold their seats."""
        return cast("WorkerGroup[Seat]", cls(workers, **options))

    def __len__(self) -> int:
        return self._size

    @property
    def places(self) -> list[str]:
        """Which process each worker is, and where."""
        return [f"{self._noun} {n}: {self._workers.describe(n)}" for n in range(self._size)]

    @property
    def alive(self) -> bool:
        """False once they were stopped."""
        return not self._is_closed

    def hold(
        self, make: Callable[Concatenate[H, P], K], /, *args: P.args, **options: P.kwargs
    ) -> "WorkerGroup[K]":
        """Let each worker make what it holds from now on; this group, with its new type."""
        given = [CallArguments(args, options)] * self._size
        self.wait(self._begin(_name_call(make), make, given, keeps=True))
        return cast("WorkerGroup[K]", self)

    def call(
        self, method: Method[H, P, T, J], /, *args: P.args, **options: P.kwargs
    ) -> "Future[J]":
        """The method on those workers, with those arguments, that it declares.

        Raises, by the future:
            RunError: a worker ended; all are stopped.
            Exception: what every worker raised alike, or the first did; then all are stopped.
        """
        return self.call_as(_name_call(method), method, *args, **options)

    def call_as(
        self, name: str, method: Method[H, P, T, J], /, *args: P.args, **options: P.kwargs
    ) -> "Future[J]":
        """`call`; errors say `name`."""
        dispatch = dispatch_of(method)
        given = dispatch.split(CallArguments(args, options), self._size)
        results = self._begin(name, method, given)
        return _then(results, dispatch.join)

    def ask(self, method: Method[H, P, T, J], /, *args: P.args, **options: P.kwargs) -> J:
        """`call`, and `wait`."""
        return self.wait(self.call(method, *args, **options))

    def wait(self, future: "Future[J]") -> J:
        """The result of a call; what interrupts the waiting stops the workers."""
        try:
            return future.result()
        except BaseException:
            if not future.done():
                self.close()
            raise

    def stream(
        self, method: Method[H, P, Iterator[T], Iterator[T]], /, *args: P.args, **options: P.kwargs
    ) -> Iterator[T]:
        """What a `streamed` method yields on the first worker; all go on together."""
        opened: Method[Any, ..., None, None] = on_all(_open_stream)
        following: Method[Any, [], tuple[T, ...], tuple[T, ...]] = on_all(_next_of_stream)
        name = _name_call(method)
        self.wait(self.call_as(name, opened, method, CallArguments(args, options)))
        while found := self.wait(self.call_as(name, following)):
            yield found[0]

    def interrupt(self) -> None:
        """Stop the workers if they are in a call, which raises RunError."""
        if self._in_call.locked():
            self.close()

    def close(self) -> None:
        """End the workers and wait for them; a second call does nothing."""
        with self._closing:
            self._is_closed = True
            self._workers.close()
        self._thread.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(
        self,
        name: str,
        fn: Callable[..., Any],
        given: Sequence[CallArguments | None],
        *,
        keeps: bool = False,
    ) -> "Future[list[Any]]":
        if self._is_closed:
            raise RunError(f"the {self._noun}s were stopped after an earlier error; resume the run")
        # The same arguments are pickled once.
        made = {
            id(one): WorkerCall(_run_on_worker, (self._run_call, fn, one), keeps) for one in given
        }
        calls = [None if one is None else made[id(one)] for one in given]
        return self._thread.submit(self._exchange_calls, name, calls)

    def _exchange_calls(self, name: str, calls: Sequence[WorkerCall | None]) -> list[Any]:
        """What the workers answer that are called; if one fails for good, all are stopped."""

        async def exchange_all() -> "list[asyncio.Task[Any] | None]":
            tasks = [
                None if call is None else asyncio.create_task(self._workers.exchange(i, call))
                for i, call in enumerate(calls)
            ]
            called = [task for task in tasks if task is not None]
            done, _ = await asyncio.wait(called, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.exception() for task in done):
                await asyncio.wait(called, timeout=_GRACE_S)
            return tasks

        with self._in_call:
            try:
                tasks = run(exchange_all())
            except BaseException:
                self.close()
                raise
        # Calls are pickled where they leave this process, and only there.
        sent = [call for call in calls if call is not None and "pickled" in vars(call)]
        self.num_bytes += sum(len(call.pickled) for call in sent)
        errors = [None if task is None or task.cancelled() else task.exception() for task in tasks]
        if not any(errors):
            return [task.result() for task in tasks if task is not None]
        raise self._judge_errors(name, errors, [task is not None for task in tasks])

    def _judge_errors(
        self, name: str, errors: Sequence[BaseException | None], called: Sequence[bool]
    ) -> BaseException:
        error = self._explain(name, errors)
        alike = {(type(one), str(one)) for one, was in zip(errors, called, strict=True) if was}
        if len(alike) == 1 and isinstance(error, AgentrlError) and error in errors:
            return error
        self.close()
        if error in errors:
            error.add_note(
                f"raised by {self._noun} {errors.index(error)} of {self._size} during {name}; "
                f"all {self._noun}s were stopped"
            )
        return error


def _run_on_worker(
    held: object,
    run_call: Callable[[Callable[..., T], object, CallArguments], T],
    fn: Callable[..., T],
    given: CallArguments,
) -> T | None:
    result = run_call(fn, held, given)
    return result if given.is_answered else None


_streams: dict[int, Iterator[Any]] = {}
"""Of this process, by what its worker holds; a worker has one at a time."""


def _open_stream(held: object, method: Callable[..., Iterator[Any]], given: CallArguments) -> None:
    _streams[id(held)] = iter(method(held, *given.args, **given.options))


def _next_of_stream(held: object) -> tuple[Any, ...]:
    """The next item alone, or nothing after the last."""
    for item in _streams[id(held)]:
        return (item,)
    _streams.pop(id(held))
    return ()


def _name_call(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__)).strip("_").replace("_", " ")


def _then(future: "Future[list[T]]", join: Callable[[Sequence[T]], J]) -> "Future[J]":
    """A future of what `join` makes of another's result."""
    joined: Future[J] = Future()

    def settle(done: "Future[list[T]]") -> None:
        with suppress(InvalidStateError):  # nobody waits for it any more
            try:
                joined.set_result(join(done.result()))
            except BaseException as error:
                joined.set_exception(error)

    future.add_done_callback(settle)
    return joined
