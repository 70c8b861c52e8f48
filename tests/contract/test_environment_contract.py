"""The rows of docs/environments.md on turns, calls, scores and rewards."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from agentrl.errors import EnvironmentFault, ToolError
from agentrl.tools import tool
from agentrl.types import (
    AssistantTurn,
    CallError,
    CallErrorReason,
    EpisodeStop,
    Invalid,
    Message,
    Score,
    StopReason,
    Task,
    ToolCall,
)
from tests.contract.episodes import CLOSED, Base, Guarded, call, calls, play, say, texts

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
    assert (transition.num_calls, transition.call_errors) == (1, ("cut_off",))


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


def look_up(text: str) -> Any:
    return json.loads(text)  # fails in a library's code


class Misplaced(Base):
    def setup(self) -> None:
        if self.task.data.get("broken"):
            look_up("{")

    @tool
    def sync(self) -> None:
        """Fail."""
        look_up("{")

    @tool
    async def in_loop(self) -> None:
        """Fail."""
        look_up("{")

    @tool(isolated=True)
    def isolated(self) -> None:
        """Fail."""
        look_up("{")


class MisplacedAway(Misplaced):
    isolation = "process"


@pytest.mark.parametrize("env_class", [Misplaced, MisplacedAway])
async def test_a_fault_names_its_place_in_the_users_code(env_class: type[Misplaced]) -> None:
    line = look_up.__code__.co_firstlineno + 1
    place = rf"raised JSONDecodeError: .* \(.*{Path(__file__).name}, line {line}, in look_up\)$"
    env = env_class()
    for name in ("sync", "in_loop", "isolated"):
        await env.areset(seed=0)
        with pytest.raises(EnvironmentFault, match=f"tool {name} {place}"):
            await env.advance(call(name))
    task = Task(prompt="p", data={"broken": True})
    with pytest.raises(EnvironmentFault, match=f"setup {place}"):
        await env.areset(seed=0, options={"task": task})
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
    assert [texts(t)[0] for t in transitions] == ["ä\n", '{"ä": [1, null]}', "Done."]
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


async def test_a_turn_that_a_limit_cut_has_the_key_of_its_state_too() -> None:
    """Nothing of it runs, so it was asked in the state that it leaves."""

    class Keyed(Base):
        async def state_key(self) -> str:
            return ",".join(self.log)

    cut = replace(call("note", text="b"), stop_reason=StopReason.LENGTH)
    first, last = await play(Keyed(), call("note", text="a"), cut)
    assert (first.state_key, last.state_key, last.stop) == ("", "a", EpisodeStop.TURN_TOKENS)
    env = Keyed()
    await env.areset(seed=0)
    transition = await env.truncate(EpisodeStop.EPISODE_TOKENS, call("note", text="a"))
    assert (transition.state_key, env.log) == ("", [])


async def test_a_key_that_takes_too_long_leaves_a_cut_turn_that_can_be_scored() -> None:
    class Slow(Base):
        async def state_key(self) -> str:
            await asyncio.sleep(60)
            return ""

    env = Slow()
    await env.areset(seed=0)
    cut = replace(call("note", text="b"), stop_reason=StopReason.LENGTH)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.advance(cut), 0.02)
    transition = await env.truncate(EpisodeStop.WALL_TIME, cut)
    assert (transition.state_key, transition.num_calls) == (None, 1)
    assert [m.role for m in env.conversation] == ["user", "assistant"]
    assert isinstance(await env.ascore(), Score)


async def test_a_key_that_is_none_makes_a_cut_episode_invalid() -> None:
    class Odd(Base):
        def state_key(self) -> str:
            return 7  # type: ignore[return-value]  # the fault

    env = Odd()
    await env.areset(seed=0)
    cut = replace(call("note", text="b"), stop_reason=StopReason.LENGTH)
    with pytest.raises(EnvironmentFault, match="state_key returned a int, expected str or None"):
        await env.advance(cut)
    with pytest.raises(ResetNeeded, match="invalid"):
        await env.advance(cut)


async def test_the_last_results_say_how_many_turns_are_left() -> None:
    class Short(Base):
        max_turns = 4
        warn_turns = 2

    transitions = await play(Short(), *[call("note", text=t) for t in "abcd"])
    said = [texts(transition)[-1] for transition in transitions]
    assert said == [
        "noted a",
        "noted b\n[2 turns are left.]",
        "noted c\n[1 turn is left.]",
        "noted d",
    ]
