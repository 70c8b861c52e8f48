"""Context policies as pure functions of what they see."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.envs import (
    Ask,
    ContextPolicy,
    ContextView,
    DropToolResults,
    Keep,
    Summarise,
    ToolEnv,
    Window,
)
from agentrl.envs.context import ContextConfig, checked_decision, followed_by, resolve_context
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.types import Message, Task

FIRST = (Message(role="system", content="s"), Message(role="user", content="task"))
TURN = (Message(role="assistant", content="a"), Message(role="tool", content="result"))


def count(messages: Sequence[Message]) -> int:
    return 10 * len(messages)


def view(turns: int, *, seed: int = 0, limit: int = 400) -> ContextView:
    messages = FIRST + TURN * turns
    return ContextView(
        first=FIRST,
        messages=messages,
        num_new=1,
        num_tokens=count(messages) - 10,
        new_tokens=10,
        max_context_tokens=limit,
        seed=seed,
        count=count,
    )


def test_keep_goes_on() -> None:
    assert Keep()(view(100)) is None


def test_tool_results_are_emptied_but_for_the_newest() -> None:
    policy = DropToolResults(keep=2, at=80)
    assert policy(view(3)) is None  # 80 tokens: not above
    shorter = policy(view(4))
    assert shorter is not None
    contents = [m.content for m in shorter if m.role == "tool"]
    assert contents == ["(dropped)", "(dropped)", "result", "result"]
    assert [m.role for m in shorter] == [m.role for m in view(4).messages]
    assert DropToolResults(keep=4, at=80)(view(4)) is None  # nothing to drop


def test_a_window_keeps_the_task_and_what_fits_into_half() -> None:
    policy = Window(100)
    assert policy(view(4)) is None
    assert policy(view(5)) == FIRST + TURN  # 40 tokens of at most 50
    assert Window(60)(view(5)) == FIRST + TURN  # the newest turn stays, although it is too long
    assert Window(10)(view(1)) is None  # there is nothing older to drop


def test_a_summary_is_asked_for_at_a_threshold_that_a_task_shares() -> None:
    policy = Summarise(at=200, request="Sum up.")
    asks = {seed: [policy(view(n, seed=seed)) is not None for n in range(12)] for seed in range(51)}
    firsts = [row.index(True) for row in asks.values()]
    assert min(firsts) == 7  # above 150 tokens
    assert max(firsts) == 10  # above 200 tokens
    ask = policy(view(10))
    assert isinstance(ask, Ask)
    assert ask.trained
    assert ask.request == "Sum up."
    assert ask.then(" one\n") == followed_by(FIRST, "Summary: one")
    masked = Summarise(at=200, trained=False)(view(10))
    assert isinstance(masked, Ask)
    assert not masked.trained


def test_without_a_number_three_quarters_of_the_limit_count() -> None:
    for policy in (DropToolResults(), Window(), Summarise()):
        assert policy(view(14, limit=400)) is None or isinstance(policy, Summarise)
        assert policy(view(15, limit=400)) is not None


def test_no_two_user_messages_follow_each_other() -> None:
    assert followed_by(FIRST, "more")[-1] == Message(role="user", content="task\nmore")
    assert followed_by(TURN, "more") == (*TURN, Message(role="user", content="more"))


def test_policies_by_name_and_by_reference(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def forget(view):\n    return view.first\n")
    mine = resolve_context(ContextConfig(policy=f"{file}:forget"))
    assert mine is not None
    assert mine(view(3)) == FIRST
    assert resolve_context(ContextConfig()) is None
    assert resolve_context(ContextConfig(policy="keep")) == Keep()
    assert resolve_context(ContextConfig(policy="window", at=64)) == Window(64)
    drop = ContextConfig(policy="drop_tool_results", keep=1, at=64)
    assert resolve_context(drop) == DropToolResults(1, 64)
    summarise = ContextConfig(policy="summarise", at=64, trained=False)
    assert resolve_context(summarise) == Summarise(64, trained=False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ContextConfig(policy="sumarise"), "policy sumarise is unknown .*did you mean summarise"),
        (ContextConfig(at=64), r"context\.at: is set, but no policy"),
        (
            ContextConfig(policy="agentrl.envs.context:DROPPED"),
            r"DROPPED is of type str, expected f\(view\)",
        ),
    ],
)
def test_wrong_policies_are_refused(config: ContextConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_context(config)


def forget(view: ContextView) -> Sequence[Message]:
    return view.first


class Forgets(ToolEnv):
    tasks = (Task(prompt="hi", answer="x"),)
    verifier = "exact_match"
    context: ContextPolicy = staticmethod(forget)


class Wrong(Forgets):
    context = "summarise"  # type: ignore[assignment]  # what is to be refused


def test_an_environment_declares_its_own() -> None:
    assert Forgets().context(view(3)) == FIRST
    with pytest.raises(ConfigError, match=r"Wrong\.context is 'summarise', expected"):
        Wrong()


@pytest.mark.parametrize(
    "returned",
    [
        "text",
        5,
        False,
        [],
        [{"role": "user", "content": "x"}],
        [Message(role="assistant", content="x")],
        Ask(request=" ", then=lambda text: []),
    ],
)
def test_what_a_policy_may_not_return_is_named(returned: object) -> None:
    with pytest.raises(EnvironmentFault, match="the context policy"):
        checked_decision(returned)


def test_what_a_policy_may_return() -> None:
    ask, messages = Ask(request="x", then=lambda text: []), [Message(role="user", content="x")]
    assert checked_decision(None) is None
    assert checked_decision(ask) is ask
    assert checked_decision(messages) == messages
