"""A call as bytes, what comes back, and what can go wrong; the caller decides whose fault it is."""

import pickle
from collections.abc import Callable
from typing import TypeVar

from agentrl.errors import AgentrlError, ConfigError
from agentrl.workers.pickling import CANNOT_PICKLE, dumps
from agentrl.workers.worker import Raised

T = TypeVar("T")


class WorkerError(AgentrlError):
    """Base of the errors of worker processes."""


class WorkerTimeout(WorkerError, TimeoutError):
    """The call ran out of time; its process is killed and reaped."""


class QueueTimeout(WorkerError, TimeoutError):
    """No worker became free in time; the call never ran."""


class WorkerDied(WorkerError):
    """The process ended by itself, was killed from outside, or its pool was closed."""


class CallFailed(WorkerError):
    """The call ended in a way that cannot be handed over as it is.

    An exception that does not survive pickling, `sys.exit`, a result that is too large or that
    cannot be pickled; the message says which.
    """


def pickled_call(
    fn: Callable[..., object], args: tuple[object, ...], *, keeps: bool = False
) -> bytes:
    """The call as a worker takes it; ConfigError if it cannot travel.

    A worker that `keeps` the result gives it to every later call as its first argument.
    """
    try:
        return dumps((fn, args, keeps))
    except CANNOT_PICKLE as error:
        raise ConfigError(
            f"{name_of(fn)} cannot run in another process, since it or its arguments cannot be "
            f"pickled ({error}); keep open files, locks and connections out of them"
        ) from error


def value_of(reply: bytes, fn: Callable[..., T]) -> T:
    """What the call returned; raises what it raised."""
    raised: Raised | None
    value: T
    try:
        raised, value = pickle.loads(reply)
    except (*CANNOT_PICKLE, EOFError, ImportError, IndexError) as error:
        raise CallFailed(f"the result of {name_of(fn)} cannot be unpickled: {error}") from error
    if raised is not None:
        raise _rebuild_raised_exception(raised, fn)
    return value


def _rebuild_raised_exception(raised: Raised, fn: Callable[..., object]) -> Exception:
    """The exception as the function raised it, with the traceback of the other process."""
    error: object = None if raised.pickled is None else pickle.loads(raised.pickled)
    if not isinstance(error, Exception):
        error = CallFailed(f"{name_of(fn)}: {raised.text}")
    if raised.traceback:
        error.add_note(f"In the worker process:\n{raised.traceback}")
    return error


def name_of(fn: Callable[..., object]) -> str:
    """How messages call the function."""
    return str(getattr(fn, "__qualname__", type(fn).__name__))
