"""The rows of docs/environments.md on where code runs, and what becomes of it when it is late."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any, ClassVar

import pytest

from agentrl.envs import EnvServices
from agentrl.errors import BreakerTripped
from agentrl.tools import AbandonedThreads, LoopWatch, tool
from agentrl.types import (
    AssistantTurn,
    EpisodeStop,
    Score,
    ToolCall,
)
from tests.contract.episodes import Base, call, play, say, texts

# Where code runs.


async def test_sync_code_of_an_episode_shares_one_thread_and_async_code_the_loop() -> None:
    class Placed(Base):
        def setup(self) -> None:
            self.places = [threading.get_ident()]
            self.db = self.resources.enter_context(closing(sqlite3.connect(":memory:")))

        @tool
        def sync(self) -> int:
            """Look around."""
            self.places.append(threading.get_ident())
            return int(self.db.execute("select 1").fetchone()[0])

        @tool
        async def fast(self) -> bool:
            """Look around."""
            return threading.current_thread() is threading.main_thread()

        def score(self, answer: Any) -> float:
            self.places.append(threading.get_ident())
            return float(self.db.execute("select 1").fetchone()[0])

    env, other = Placed(), Placed()
    sync, fast, _ = await play(env, call("sync"), call("fast"), say(""))
    assert texts(sync) + texts(fast) == ["1", "true"]
    assert await env.ascore() == Score(value=1.0)
    assert len(set(env.places)) == 1
    assert env.places[0] != threading.get_ident()
    await other.areset(seed=0)
    assert other.places[0] != env.places[0]
    await env.aclose()
    await other.aclose()


async def test_async_code_starts_no_thread() -> None:
    before = set(threading.enumerate())
    env = Base()
    await play(env, call("note", text="a"))
    assert set(threading.enumerate()) <= before
    await env.aclose()


async def test_an_async_tool_that_is_late_is_cancelled_and_shown() -> None:
    class Late(Base):
        @tool(timeout_s=0.02)
        async def wait(self) -> str:
            """Wait."""
            await asyncio.sleep(60)
            return ""

    first, second = await play(Late(), call("wait"), say("yes"))
    assert texts(first) == ["Error: timed out after 0.02 s"]
    assert (first.call_errors, first.stop) == (("tool_timeout",), None)
    assert second.stop is EpisodeStop.ANSWERED


async def test_an_isolated_tool_is_killed_at_its_timeout_and_the_episode_goes_on() -> None:
    class Heavy(Base):
        @tool(isolated=True, timeout_s=1)
        def power(self, n: int) -> int:
            """Compute.

            Args:
                n: how large.
            """
            return len(str(n ** (n**n)))

    services = EnvServices()
    env, other = Heavy(services=services), Heavy(services=services)
    (quick,) = await play(env, call("power", n=3))
    assert texts(quick) == ["13"]
    await other.areset(seed=0)
    slow = asyncio.create_task(env.advance(call("power", n=9)))
    assert texts(await other.advance(call("note", text="a"))) == ["noted a"]
    assert not slow.done()
    assert texts(await slow) == ["Error: timed out after 1 s"]
    assert texts(await env.advance(call("note", text="b"))) == ["noted b"]
    services.close()


class Hanging(Base):
    """A sync tool waits for `gate`."""

    tool_timeout_s = 0.02
    gate: ClassVar[threading.Event]

    def setup(self) -> None:
        self.db = self.resources.enter_context(closing(sqlite3.connect(":memory:")))
        self.resources.callback(self.log.append, "closed")

    def teardown(self) -> None:
        self.log.append("teardown")

    @tool
    def hang(self) -> str:
        """Hang."""
        self.gate.wait()
        return ""


async def test_a_sync_tool_that_hangs_ends_the_episode_as_a_scored_timeout() -> None:
    Hanging.gate = threading.Event()
    services = EnvServices()
    env = Hanging(services=services)
    (transition,) = await play(env, call("hang"))
    assert transition.stop is EpisodeStop.TOOL_TIMEOUT
    assert not transition.stop.truncated
    assert await env.ascore() == Score(value=0.0)
    assert services.census.count == 1
    Hanging.gate.set()
    await env.aclose()


async def test_a_tool_that_ends_within_the_grace_time_leaves_a_world_to_score() -> None:
    Hanging.gate = threading.Event()
    services = EnvServices()
    env = Hanging(services=services)
    env.grace_s = 5.0
    await env.areset(seed=0)
    asyncio.get_running_loop().call_later(0.1, Hanging.gate.set)
    transition = await env.advance(
        AssistantTurn(text="yes", calls=(ToolCall(name="hang", arguments={}),))
    )
    assert transition.stop is EpisodeStop.TOOL_TIMEOUT
    assert await env.ascore() == Score(value=1.0)
    assert services.census.count == 0
    await env.aclose()
    assert env.log == ["score", "teardown", "closed"]


async def test_an_abandoned_thread_closes_the_resources_when_it_returns() -> None:
    Hanging.gate = threading.Event()
    services = EnvServices()
    env = Hanging(services=services)
    await play(env, call("hang"))
    await env.aclose()
    assert env.log == []
    Hanging.gate.set()
    async with asyncio.timeout(30):
        while services.census.count:  # noqa: ASYNC110 (another thread ends it)
            await asyncio.sleep(0.01)
    assert env.log == ["teardown", "closed"]


async def test_too_many_hanging_threads_trip_the_breaker_by_name() -> None:
    Hanging.gate = threading.Event()
    services = EnvServices(census=AbandonedThreads(limit=1))
    await play(Hanging(services=services), call("hang"))
    with pytest.raises(BreakerTripped, match=r"2 threads .* Hanging: tool hang \(2\)"):
        await play(Hanging(services=services), call("hang"))
    Hanging.gate.set()


async def test_a_loop_that_stands_still_names_who_held_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Rude(Base):
        @tool
        async def block(self) -> str:
            """Block."""
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                pass
            return ""

    async with LoopWatch(limit_s=0.05) as watch:
        for _ in range(5):  # a starved machine may be late for other reasons first
            await play(Rude(), call("block"))
            await asyncio.sleep(0.05)
            if "Rude.block" in caplog.text:
                break
    assert watch.num_stalls >= 1
    assert "Rude.block" in caplog.text


async def test_a_busy_loop_is_nobodys_fault() -> None:
    """Many small things in one round of the loop leave its timers waiting."""

    def little() -> None:
        sum(range(2000))

    loop, began = asyncio.get_running_loop(), time.thread_time()
    async with LoopWatch(limit_s=0.2) as watch:
        beat_s = watch._beat_s  # pyright: ignore[reportPrivateUsage]
        for _ in range(30_000):
            loop.call_soon(little)
        await asyncio.sleep(0)
        assert watch._beat_s - beat_s < 1e-9  # pyright: ignore[reportPrivateUsage]
    assert time.thread_time() - began > 0.4
    assert watch.num_stalls == 0


async def test_a_starved_loop_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LoopWatch(limit_s=0.05) as watch:
        assert watch._read_loop_queued_s() > 0.0  # pyright: ignore[reportPrivateUsage]  # Linux says it
        # All the time that passes, the thread is ready and gets no processor.
        monkeypatch.setattr(watch, "_read_loop_queued_s", time.monotonic)
        time.sleep(0.3)  # noqa: ASYNC251  # the block is what the test is about
    assert watch.num_stalls == 0


class Remote(Base):
    isolation = "process"
    tool_timeout_s = 1

    def setup(self) -> None:
        self.counter = 0

    @tool
    def count(self) -> int:
        """Count."""
        self.counter += 1
        return self.counter

    @tool
    def hold(self) -> int:
        """Hold the interpreter."""
        return len(str(9 ** (9**9)))

    def score(self, answer: Any) -> float:
        return self.counter / 10


async def test_an_environment_in_a_process_plays_by_the_same_rules() -> None:
    env = Remote()
    transitions = await play(env, call("count"), call("count"), call("nix"), say("bye"))
    assert [texts(t) for t in transitions][:2] == [["1"], ["2"]]
    assert "there is no tool nix" in texts(transitions[2])[0]
    assert transitions[3].stop is EpisodeStop.ANSWERED
    assert await env.ascore() == Score(value=0.2)
    await env.aclose()
    assert not hasattr(env, "counter")
    assert [m.role for m in env.conversation][-3:] == ["assistant", "tool", "assistant"]


async def test_an_environment_in_a_process_can_always_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.envs.remote._SLACK_S", 0.5)
    env = Remote()
    (transition,) = await play(env, call("hold"))
    assert transition.stop is EpisodeStop.TOOL_TIMEOUT
    assert await env.ascore() == Score(value=0.0)
    await env.aclose()
