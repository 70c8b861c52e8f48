"""The rules of docs/environments.md, one test each."""

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs import EnvServices, ToolEnv, Transition
from agentrl.envs.tasks import Tasks
from agentrl.errors import BreakerTripped, ConfigError, EnvironmentFault, ToolError
from agentrl.tools import LoopWatch, ThreadCensus, tool
from agentrl.types import (
    AssistantTurn,
    CallError,
    CallErrorReason,
    EpisodeStop,
    Invalid,
    Json,
    Message,
    Score,
    StopReason,
    Task,
    ToolCall,
)

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"`tests/contract/test_environment_contract\.py::(test_\w+)`")


def say(text: str) -> AssistantTurn:
    return AssistantTurn(text=text)


def call(name: str, **arguments: Json) -> AssistantTurn:
    return calls(ToolCall(name=name, arguments=arguments, id="call_0"))


def calls(*items: ToolCall | CallError) -> AssistantTurn:
    return AssistantTurn(calls=items)


def texts(transition: Transition) -> list[str]:
    return [message.content for message in transition.messages]


async def play(env: ToolEnv, *turns: AssistantTurn, seed: int = 0) -> list[Transition]:
    await env.areset(seed=seed)
    return [await env.advance(turn) for turn in turns]


class Base(ToolEnv):
    """This docstring is documentation."""

    tasks: ClassVar[Tasks | None] = ({"prompt": "Go.", "answer": "yes"},)
    grace_s = 0.05

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[str] = []

    def score(self, answer: Any) -> Score | float:
        self.log.append("score")
        return Score(value=float(answer == "yes"))

    @tool
    async def note(self, text: str) -> str:
        """Write something down.

        Args:
            text: what to write.
        """
        self.log.append(text)
        return f"noted {text}"

    @tool
    async def done(self, answer: str = "yes") -> str:
        """End.

        Args:
            answer: the answer.
        """
        return self.finish(answer)


class Guarded(Base):
    """Logs what is opened and closed."""

    @contextmanager
    def opened(self, name: str) -> Any:
        self.log.append(f"open {name}")
        yield name
        self.log.append(f"close {name}")

    def setup(self) -> None:
        self.log.clear()
        self.resources.enter_context(self.opened("a"))
        self.resources.enter_context(self.opened("b"))

    def teardown(self) -> None:
        self.log.append("teardown")

    @tool
    def crash(self) -> str:
        """Fail."""
        raise KeyError("lost")


CLOSED = ["teardown", "close b", "close a"]


# The course of an episode.


async def test_calls_run_in_order_and_the_episode_goes_on() -> None:
    env = Base()
    items = [ToolCall(name="note", arguments={"text": t}, id=f"call_{t}") for t in "abc"]
    (transition,) = await play(env, calls(*items))
    assert env.log == ["a", "b", "c"]
    assert texts(transition) == ["noted a", "noted b", "noted c"]
    assert [m.tool_call_id for m in transition.messages] == ["call_a", "call_b", "call_c"]
    assert (transition.stop, transition.num_calls) == (None, 3)


async def test_a_turn_without_calls_ends_the_episode() -> None:
    (transition,) = await play(Base(), say("yes"))
    assert transition.stop is EpisodeStop.ANSWERED
    assert transition.messages == ()


async def test_reply_is_the_next_user_message() -> None:
    class Talk(Base):
        async def reply(self, text: str) -> str | None:
            return None if text == "bye" else f"{text}?"

    first, second = await play(Talk(), say("hm"), say("bye"))
    assert first.messages == (Message(role="user", content="hm?"),)
    assert (first.stop, second.stop) == (None, EpisodeStop.ANSWERED)


async def test_finish_ends_the_episode_and_later_calls_do_not_run() -> None:
    env = Base()
    items = (
        ToolCall(name=n, arguments={"text": "late"} if n == "note" else {})
        for n in ("done", "note")
    )
    (transition,) = await play(env, calls(*items))
    assert transition.stop is EpisodeStop.FINISHED
    assert env.log == []
    assert len(transition.messages) == 1


async def test_the_answer_is_what_finish_got_else_the_last_text() -> None:
    env = Base()
    await play(env, call("done", answer="42"))
    assert env.answer == "42"
    await play(env, AssistantTurn(text="43", reasoning="not 42"))
    assert env.answer == "43"
    assert env.conversation[-1].reasoning == "not 42"


async def test_the_conversation_begins_with_system_and_task_and_grows() -> None:
    class Spoken(Base):
        system = "Be brief."

    env = Spoken()
    await play(env, call("note", text="a"))
    roles = [message.role for message in env.conversation]
    assert roles == ["system", "user", "assistant", "tool"]
    assert env.conversation[0].content == "Be brief."
    await env.aclose()
    assert len(env.conversation) == 4


async def test_the_docstring_is_no_prompt() -> None:
    env = Base()
    await env.areset(seed=0)
    assert env.conversation == (Message(role="user", content="Go."),)


async def test_after_max_turns_the_episode_is_truncated() -> None:
    class Short(Base):
        max_turns = 2

    first, second = await play(Short(), call("note", text="a"), call("note", text="b"))
    assert (first.stop, second.stop) == (None, EpisodeStop.MAX_TURNS)
    assert second.stop is not None
    assert second.stop.truncated


async def test_nothing_runs_after_a_length_stop() -> None:
    env = Base()
    cut = AssistantTurn(
        calls=(ToolCall(name="note", arguments={"text": "a"}),), stop_reason=StopReason.LENGTH
    )
    (transition,) = await play(env, cut)
    assert env.log == []
    assert transition.stop is EpisodeStop.TURN_TOKENS


async def test_a_budget_of_the_loop_records_the_turn_and_runs_nothing() -> None:
    env = Base()
    await env.areset(seed=0)
    turn = call("note", text="a")
    transition = await env.truncate(EpisodeStop.EPISODE_TOKENS, turn)
    assert (env.log, transition.stop) == ([], EpisodeStop.EPISODE_TOKENS)
    assert env.conversation[-1] == turn.message()
    assert isinstance(await env.ascore(), Score)


async def test_a_turn_that_was_cut_off_can_be_truncated_and_scored() -> None:
    class Slow(Base):
        @tool
        async def wait(self) -> str:
            """Wait."""
            await asyncio.sleep(60)
            return ""

    env = Slow()
    await env.areset(seed=0)
    turn = calls(
        ToolCall(name="note", arguments={"text": "a"}), ToolCall(name="wait", arguments={})
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.advance(turn), 0.02)
    transition = await env.truncate(EpisodeStop.WALL_TIME, turn)
    assert texts(transition) == ["noted a"]
    assert [m.role for m in env.conversation] == ["user", "assistant", "tool"]
    assert isinstance(await env.ascore(), Score)


async def test_a_stopped_episode_takes_no_turn() -> None:
    env = Base()
    await play(env, say("yes"))
    with pytest.raises(ResetNeeded, match="answered"):
        await env.advance(say("more"))
    with pytest.raises(ResetNeeded, match="call reset first"):
        await Base().advance(say("early"))


# Calls.


async def test_failed_calls_are_answered_in_call_order() -> None:
    bad = CallError(reason=CallErrorReason.MALFORMED, message="no JSON", name="note", id="call_0")
    good = ToolCall(name="note", arguments={"text": "a"}, id="call_1")
    (transition,) = await play(Base(), calls(bad, good))
    assert texts(transition) == ["Error: no JSON", "noted a"]
    assert [m.tool_call_id for m in transition.messages] == ["call_0", "call_1"]
    assert (transition.num_calls, transition.call_errors) == (2, ("malformed",))


async def test_calls_that_do_not_fit_are_shown_to_the_model() -> None:
    env = Base()
    (transition,) = await play(
        env,
        calls(
            ToolCall(name="notes", arguments={}),
            ToolCall(name="note", arguments={"text": 3}),
            ToolCall(name="note", arguments={"words": "a"}),
        ),
    )
    unknown, wrong, missing = texts(transition)
    assert unknown == "Error: there is no tool notes; the tools are: note, done"
    assert "argument text" in wrong
    assert "got 3" in wrong
    assert "argument text is missing" in missing
    assert "unknown argument words" in missing
    assert transition.call_errors == ("unknown_tool", "bad_arguments", "bad_arguments")
    assert env.log == []


async def test_a_tool_error_is_shown_and_any_other_exception_is_a_fault() -> None:
    class Faulty(Base):
        @tool
        def refuse(self) -> str:
            """Refuse."""
            raise ToolError("not today")

        @tool
        def crash(self) -> str:
            """Fail."""
            raise KeyError("secret")

    env = Faulty()
    (transition,) = await play(env, call("refuse"))
    assert texts(transition) == ["Error: not today"]
    assert (transition.call_errors, transition.stop) == (("tool_error",), None)
    with pytest.raises(EnvironmentFault, match="tool crash raised KeyError") as caught:
        await env.advance(call("crash"))
    with pytest.raises(ResetNeeded, match="invalid"):
        await env.advance(say("on we go"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert all("secret" not in message.content for message in env.conversation)
    await env.aclose()


async def test_a_finish_that_fails_does_not_count() -> None:
    class Hasty(Base):
        @tool
        def hasty(self) -> str:
            """Finish, then fail."""
            self.finish("yes")
            raise ToolError("no")

    env = Hasty()
    both = calls(ToolCall(name="hasty"), ToolCall(name="note", arguments={"text": "a"}))
    first, second = await play(env, both, say("last"))
    assert (first.stop, second.stop) == (None, EpisodeStop.ANSWERED)
    assert env.answer == "last"


async def test_results_are_text_or_json() -> None:
    class Typed(Base):
        @tool
        async def get(self, what: str) -> object:
            """Get.

            Args:
                what: which.
            """
            return {"text": "ä\n", "dict": {"ä": [1, None]}, "none": None, "bytes": b""}[what]

    env = Typed()
    transitions = await play(env, *(call("get", what=w) for w in ("text", "dict", "none")))
    assert [texts(t)[0] for t in transitions] == ["ä\n", '{"ä": [1, null]}', "null"]
    with pytest.raises(EnvironmentFault, match="tool get returned a bytes"):
        await env.advance(call("get", what="bytes"))


async def test_a_long_result_loses_its_middle() -> None:
    class Long(Base):
        max_tool_tokens = 40

        @tool
        async def dump(self) -> str:
            """Dump."""
            return "head" + "x" * 10**6 + "tail"

    (transition,) = await play(Long(), call("dump"))
    (text,) = texts(transition)
    assert text.startswith("head")
    assert text.endswith("tail")
    assert "characters left out" in text
    assert len(text) <= 160


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
        @tool(isolated=True, timeout_s=0.2)
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
    assert texts(await slow) == ["Error: timed out after 0.2 s"]
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
    async with asyncio.timeout(5):
        while services.census.count:  # noqa: ASYNC110 (another thread ends it)
            await asyncio.sleep(0.01)
    assert env.log == ["teardown", "closed"]


async def test_too_many_hanging_threads_trip_the_breaker_by_name() -> None:
    Hanging.gate = threading.Event()
    services = EnvServices(census=ThreadCensus(limit=1))
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
    async def little() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    async with LoopWatch(limit_s=0.05) as watch:
        # A clock that never comes: many small things that leave the loop's timers waiting.
        watch._beat_s = time.monotonic() - 1.0  # pyright: ignore[reportPrivateUsage]
        await asyncio.gather(*(little() for _ in range(50)))
    assert watch.num_stalls == 0


class Remote(Base):
    isolation = "process"
    tool_timeout_s = 0.2

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


# Scores and rewards.


async def test_score_sees_the_final_state_before_teardown() -> None:
    env = Guarded()
    await play(env, say("yes"))
    assert await env.ascore() == Score(value=1.0)
    assert await env.ascore() == Score(value=1.0)
    await env.aclose()
    assert env.log == ["open a", "open b", "score", *CLOSED]


@pytest.mark.parametrize("value", [None, float("nan"), "1", KeyError("x")])
async def test_an_own_score_that_is_none_makes_the_episode_invalid(value: object) -> None:
    class Odd(Base):
        def score(self, answer: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

    env = Odd()
    await play(env, say("yes"))
    outcome = await env.ascore()
    assert isinstance(outcome, Invalid)
    assert outcome.blame == "environment"
    assert "score" in outcome.reason


async def test_a_verifier_gets_task_and_answer_and_its_failure_is_its_own() -> None:
    async def compare(task: Task, answer: Any) -> bool:
        return bool(task.answer == answer)

    async def broken(task: Task, answer: Any) -> bool:
        raise KeyError("x")

    env = Base(verifier=compare)
    await play(env, say("yes"))
    assert await env.ascore() == Score(value=1.0)
    assert env.log == []
    env = Base(verifier=broken)
    await play(env, say("yes"))
    outcome = await env.ascore()
    assert isinstance(outcome, Invalid)
    assert outcome.blame == "verifier"


async def test_rewards_sum_up_by_turn_and_the_score_is_on_the_last() -> None:
    class Paid(Base):
        @tool
        async def work(self) -> str:
            """Work."""
            self.reward(0.25, "work")
            self.reward(0.5)
            return ""

    env = Paid()
    twice = calls(*[ToolCall(name="work", arguments={})] * 2)
    first, second, _ = await play(env, twice, call("work"), say("yes"))
    assert (first.reward, first.parts) == (1.5, {"work": 0.5})
    assert (second.reward, second.parts) == (0.75, {"work": 0.25})
    await env.areset(seed=0)
    rewards = [(await env.astep(turn))[1] for turn in (twice, say("yes"))]
    assert rewards == [1.5, 1.0]


async def test_reward_and_finish_belong_to_a_turn() -> None:
    class Early(Base):
        def setup(self) -> None:
            self.reward(1.0)

    with pytest.raises(EnvironmentFault, match="reward was called outside of a turn"):
        await Early().areset(seed=0)


async def test_the_state_key_is_of_the_state_that_was_acted_in() -> None:
    class Keyed(Base):
        async def state_key(self) -> str:
            return ",".join(self.log)

    transitions = await play(Keyed(), call("note", text="a"), call("note", text="b"), say("yes"))
    assert [t.state_key for t in transitions] == ["", "a", "a,b"]


# Beginning and end.


async def test_resources_close_in_reverse_order_also_when_setup_fails() -> None:
    class Half(Guarded):
        def setup(self) -> None:
            super().setup()
            raise OSError("disk full")

    env = Half()
    with pytest.raises(EnvironmentFault, match="setup raised OSError: disk full"):
        await env.areset(seed=0)
    assert env.log == ["open a", "open b", *CLOSED]


async def test_async_resources_close_too_and_one_failure_leaves_none_open() -> None:
    class Mixed(Base):
        async def setup(self) -> None:
            stack = await self.resources.enter_async_context(AsyncExitStack())
            stack.callback(self.log.append, "stack")
            self.resources.callback(self.fail)
            self.resources.callback(self.log.append, "first")

        def fail(self) -> None:
            raise OSError("stuck")

    env = Mixed()
    await env.areset(seed=0)
    with pytest.raises(EnvironmentFault, match="OSError: stuck"):
        await env.aclose()
    assert env.log == ["first", "stack"]
    await env.aclose()


@pytest.mark.parametrize("path", ["answer", "crash", "cancel", "close", "reset"])
async def test_teardown_runs_once_per_setup_on_every_path(path: str) -> None:
    env = Guarded()
    await env.areset(seed=0)
    log = env.log
    match path:
        case "answer":
            await env.advance(say("yes"))
        case "crash":
            with pytest.raises(EnvironmentFault):
                await env.advance(call("crash"))
        case "cancel":
            task = asyncio.create_task(env.advance(call("crash")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        case "reset":
            env.log = []
            env.setup = lambda: None  # type: ignore[method-assign]
            log = env.log
            await env.areset(seed=0)
            assert log == CLOSED
            log.clear()
        case _:
            pass
    await env.aclose()
    await env.aclose()
    assert log.count("teardown") == 1


async def test_reset_on_a_used_instance_tears_the_old_episode_down_first() -> None:
    env = Guarded()
    await env.areset(seed=0)
    log = env.log = env.log.copy()
    env.resources.callback(lambda: log.append("late"))
    await env.areset(seed=0)
    assert log[:2] == ["open a", "open b"]
    assert env.log == ["open a", "open b"]
    await env.aclose()


async def test_a_setup_that_never_ends_is_a_fault() -> None:
    class Endless(Base):
        hook_timeout_s = 0.02

        async def setup(self) -> None:
            await asyncio.sleep(60)

    with pytest.raises(EnvironmentFault, match=r"setup did not end within 0\.02 s"):
        await Endless().areset(seed=0)


def test_close_is_idempotent() -> None:
    env = Guarded()
    env.close()
    env.reset(seed=0)
    env.close()
    env.close()
    assert env.log.count("teardown") == 1


# Tasks, parameters, randomness.


class Numbers(Base):
    tasks = None

    class Config(BaseConfig):
        limit: int = Field(default=10**6, ge=1, description="largest number")

    config: Config

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        return Task(prompt=f"{split} {rng.integers(config.limit)}")

    @tool
    async def dice(self) -> int:
        """Roll."""
        return int(self.rng.integers(10**9))


def test_made_tasks_follow_from_index_split_and_seed() -> None:
    def prompt(index: int, split: str, seed: int) -> object:
        return Numbers.task_at(index, split=split, seed=seed).prompt

    assert prompt(3, "train", 7) == prompt(3, "train", 7)
    assert prompt(3, "train", 7) != str(prompt(3, "heldout", 7)).replace("heldout", "train")
    different = {prompt(3, "train", 7), prompt(4, "train", 7), prompt(3, "train", 8)}
    assert len(different) == 3
    small = Numbers.task_at(3, split="train", seed=7, config=Numbers.Config(limit=1))
    assert small.prompt == "train 0"
    assert Numbers.num_tasks("train") is None


def test_listed_tasks_come_once_per_pass() -> None:
    class Listed(Base):
        tasks: ClassVar[Any] = {
            "train": [{"prompt": str(i)} for i in range(20)],
            "heldout": [Task(prompt="x")],
        }

    assert (Listed.num_tasks("train"), Listed.num_tasks("heldout")) == (20, 1)
    order = [Listed.task_at(i, split="train", seed=1).prompt for i in range(40)]
    assert sorted(order[:20]) == sorted(order[20:]) == sorted(map(str, range(20)))
    assert order[:20] != order[20:]
    with pytest.raises(ConfigError, match="no tasks for the split test, only for train, heldout"):
        Listed.task_at(0, split="test", seed=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [({"limit": 0}, "limit: got 0"), ({"limt": 1}, "limt: unknown key, did you mean limit")],
)
def test_parameters_are_checked_and_frozen(config: Mapping[str, int], message: str) -> None:
    assert Numbers({"limit": 5}).config.limit == 5
    with pytest.raises(ConfigError, match=message):
        Numbers(config)
    with pytest.raises(ValueError, match="frozen"):
        Numbers().config.limit = 7


async def test_everything_random_follows_from_the_seed() -> None:
    env = Numbers()
    runs: list[tuple[Message, list[list[str]]]] = []
    for seed in (1, 1, 2):
        transitions = await play(env, call("dice"), call("dice"), seed=seed)
        runs.append((env.conversation[0], [texts(t) for t in transitions]))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    assert runs[0][1] != runs[2][1]


# Gymnasium.


def test_step_parses_text_and_plays_by_the_same_rules() -> None:
    env = Base()
    observation, info = env.reset(seed=0, options={"split": "train"})
    assert (observation, info["messages"]) == ("Go.", env.conversation)
    text = 'I write.\n<tool_call>{"name": "note", "arguments": {"text": "a"}}</tool_call>'
    assert env.step(text)[:4] == ("noted a", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step("yes")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert (info["stop"], info["outcome"]) == (EpisodeStop.ANSWERED, Score(value=1.0))
    env.close()


def test_an_invalid_outcome_has_no_reward() -> None:
    class Odd(Base):
        def score(self, answer: Any) -> Any:
            return None

    env = Odd()
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="is a return missing"):
        env.step("yes")
    env.close()


async def test_sync_calls_in_a_running_loop_are_refused() -> None:
    env = Base()
    with pytest.raises(RuntimeError, match="await areset"):
        env.reset(seed=0)
    await env.areset(seed=0)
    with pytest.raises(RuntimeError, match="await areset"):
        env.step("yes")
    await env.aclose()
    env.close()


# The table.


def test_the_table_and_these_tests_match() -> None:
    rows = ROW.findall((ROOT / "docs" / "environments.md").read_text())
    source = Path(__file__).read_text()
    tests = re.findall(r"^(?:async )?def (test_\w+)", source, flags=re.MULTILINE)
    tests.remove("test_the_table_and_these_tests_match")
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(tests)
