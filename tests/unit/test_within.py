"""Waiting with a limit: what is done at once, what waits, what is late, and who cancels whom."""

import asyncio

import pytest

from agentrl.aio import OutOfTime, PauseWatch, within


async def sleeps(seconds: float, times: int = 3) -> str:
    for _ in range(times):
        await asyncio.sleep(seconds)
    return "done"


async def test_what_never_waits_needs_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "timeout")
    assert await within(5.0, sleeps(0, times=0)) == "done"


@pytest.mark.parametrize("limit", [5.0, None])
async def test_what_waits_goes_on_to_its_result(limit: float | None) -> None:
    assert await within(limit, sleeps(0.001)) == "done"
    assert await within(limit, sleeps(0)) == "done"


async def test_what_is_late_is_cancelled_and_cleans_up() -> None:
    seen: list[str] = []

    async def late() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.001)
            seen.append("cleaned")

    with pytest.raises(OutOfTime, match=r"longer than 0\.02 s"):
        await within(0.02, late())
    assert seen == ["cleaned"]


@pytest.mark.parametrize("pause", [None, 0, 0.001])
async def test_errors_of_its_own_keep_their_type(pause: float | None) -> None:
    async def fails() -> None:
        if pause is not None:
            await asyncio.sleep(pause)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await within(5.0, fails())


async def test_a_cancellation_from_outside_is_one() -> None:
    seen: list[type[BaseException]] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(30)
        except BaseException as error:
            seen.append(type(error))
            raise

    task = asyncio.create_task(within(20.0, waits()))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [asyncio.CancelledError]


async def test_limits_nest() -> None:
    async def inner() -> str:
        try:
            await within(0.01, sleeps(30))
        except OutOfTime:
            await asyncio.sleep(0.001)
            return "inner was late"
        return "never"

    assert await within(10.0, inner()) == "inner was late"
    with pytest.raises(OutOfTime):
        await within(0.01, within(10.0, sleeps(30)))


async def test_a_limit_stands_still_in_pauses() -> None:
    watch = PauseWatch()

    async def is_paused() -> str:
        for _ in range(2):
            watch.pause()
            await asyncio.sleep(0.2)
            watch.pause()  # nothing new: it goes on
            await asyncio.sleep(0.2)
            watch.resume()
            watch.resume()
        return "done"

    assert await within(0.5, is_paused(), lambda: watch.total_s) == "done"
    assert 0.8 <= watch.total_s < 30
    before_s, began = watch.total_s, asyncio.get_running_loop().time()
    with pytest.raises(OutOfTime):
        await within(0.1, sleeps(30), lambda: watch.total_s)
    assert watch.total_s == before_s
    assert 0.1 <= asyncio.get_running_loop().time() - began < 20


async def test_what_is_left_of_a_limit_is_left_after_a_pause() -> None:
    watch = PauseWatch()
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, watch.pause)
    loop.call_later(0.35, watch.resume)
    began = loop.time()
    with pytest.raises(OutOfTime):
        await within(0.15, sleeps(30), lambda: watch.total_s)
    # A busy machine may begin the pause late; what counts is the time beside it.
    assert 0.149 <= loop.time() - began - watch.total_s < 20
