import asyncio
import contextvars
import threading

import pytest

from agentrl.errors import BreakerTripped
from agentrl.tools import AbandonedThreads, EpisodeThread


async def test_calls_run_in_order_on_one_thread_with_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("seen")
    thread = EpisodeThread("t")
    idents = [await thread.call(threading.get_ident, 5) for _ in range(3)]
    assert set(idents) == {thread.ident}
    assert await thread.call(variable.get, 5) == "seen"
    assert await thread.wait_idle(5)
    thread.stop()


async def test_an_exception_arrives_as_it_is() -> None:
    thread = EpisodeThread("t")
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 / 0, 5)
    with pytest.raises(ValueError, match="invalid literal"):
        await thread.call(int, 5, "x")
    thread.stop()


async def test_a_late_call_goes_on_alone_and_its_result_is_dropped() -> None:
    gate = threading.Event()
    thread = EpisodeThread("t")
    with pytest.raises(TimeoutError):
        await thread.call(gate.wait, 0.01)
    assert thread.busy
    assert not await thread.wait_idle(0.01)
    gate.set()
    assert await thread.wait_idle(5)
    assert await thread.call(lambda: 2, 5) == 2
    thread.stop()


async def test_an_abandoned_thread_says_when_it_is_back() -> None:
    gate, back = threading.Event(), threading.Event()
    thread = EpisodeThread("t")
    with pytest.raises(TimeoutError):
        await thread.call(gate.wait, 0.01)
    assert thread.abandon(back.set)
    assert not back.is_set()
    gate.set()
    assert await asyncio.to_thread(back.wait, 5)


async def test_a_thread_that_is_back_already_is_not_abandoned() -> None:
    thread = EpisodeThread("t")
    await thread.call(int, 5)
    await thread.wait_idle(5)
    assert not thread.abandon(lambda: None)
    thread.stop()


def test_a_result_for_a_loop_that_is_gone_is_dropped() -> None:
    gate = threading.Event()
    threads: list[EpisodeThread] = []

    async def start() -> None:
        threads.append(EpisodeThread("t"))
        with pytest.raises(TimeoutError):
            await threads[0].call(gate.wait, 0.01)

    asyncio.run(start())
    gate.set()
    threads[0].stop()
    assert asyncio.run(threads[0].wait_idle(5))


def test_the_census_counts_by_name_and_trips() -> None:
    census = AbandonedThreads(limit=2)
    census.abandon("a")
    census.abandon("b")
    census.come_back("b")
    census.abandon("a")
    assert census.count == 2
    with pytest.raises(BreakerTripped, match=r"3 threads hang .* at most 2: a \(2\), c \(1\)"):
        census.abandon("c")
