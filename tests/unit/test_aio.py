"""Coroutines from plain code: on this thread, in a running loop, in a thread; interrupted."""

import asyncio
import os
import signal
import threading
from contextvars import ContextVar

import pytest

from agentrl.aio import Runner, run

WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def who() -> tuple[str, int]:
    await asyncio.sleep(0)
    return WHO.get(), threading.get_ident()


def test_plain_code_runs_them_on_its_own_thread() -> None:
    with Runner() as runner:
        WHO.set("plain")
        assert runner.run(who()) == ("plain", threading.get_ident())
    assert run(who())[1] == threading.get_ident()


async def test_a_running_loop_runs_them_on_another_thread() -> None:
    WHO.set("notebook")
    loop = asyncio.get_running_loop()
    with Runner() as runner:
        name, first = runner.run(who())
        assert (name, first == threading.get_ident()) == ("notebook", False)
        assert runner.run(who())[1] == first
    assert asyncio.get_running_loop() is loop
    assert not [t for t in threading.enumerate() if t.name.startswith("agentrl-loop")]


def test_one_runner_serves_plain_code_and_a_running_loop() -> None:
    """What a coroutine left on the loop, another one finds."""

    async def make() -> asyncio.Event:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, event.set)
        return event

    async def inside(runner: Runner, event: asyncio.Event) -> bool:
        return runner.run(event.wait())

    with Runner() as runner:
        assert asyncio.run(inside(runner, runner.run(make())))
        assert runner.run(who())[1] == threading.get_ident()


def test_a_thread_without_a_loop_may_run_them() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run(who())[1]))
    thread.start()
    thread.join()
    assert found == [thread.ident]


async def test_errors_come_as_they_are() -> None:
    async def fail() -> None:
        raise TimeoutError("late")

    with pytest.raises(TimeoutError, match="late"):
        run(fail())


def test_what_a_handler_raises_ends_the_coroutine_first() -> None:
    ended: list[str] = []

    def refuse(*_: object) -> None:
        raise SystemExit(7)

    async def work() -> None:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGALRM]).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("work")
            raise TimeoutError("of the end")

    before = signal.signal(signal.SIGALRM, refuse)
    try:
        with Runner() as runner:
            with pytest.raises(SystemExit, match="7"):
                runner.run(work())
            assert ended == ["work"]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("where", ["plain", "notebook"])
def test_an_interrupt_cancels_the_coroutine_and_waits_for_its_end(where: str) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            run(work())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if where == "plain":
            with pytest.raises(KeyboardInterrupt):
                run(work())
        else:
            loop = asyncio.new_event_loop()  # as a kernel does it: without a handler of SIGINT
            loop.run_until_complete(cell())
            loop.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["work"]
