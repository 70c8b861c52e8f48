"""`within`: wait for a coroutine, but not for ever; a clock costs nothing where nothing waits.

The coroutine is begun first. Most tools and hooks end without having waited for anything, and then
no clock was set; a coroutine that waits goes on under `asyncio.timeout`.
"""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """The time of `within` is over; a TimeoutError of the coroutine's own stays one."""


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; None is no limit. Raises OutOfTime after a longer one was cancelled."""
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await _go_on(work, waits_for)
    except TimeoutError:
        if clock.expired():
            raise OutOfTime(f"it took longer than {seconds} s") from None
        raise


@coroutine
def _go_on(work: Coroutine[Any, Any, T], waits_for: object) -> Generator[object, Any, T]:
    """Await the rest of a coroutine that has been begun."""
    while True:
        try:
            answer = yield waits_for
        except BaseException as error:  # a cancellation is the coroutine's to see
            step = partial(work.throw, error)
        else:
            step = partial(work.send, answer)
        try:
            waits_for = step()
        except StopIteration as done:
            result: T = done.value
            return result
