"""What a step says when nothing was trained or no tool was called."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agentrl.orchestration.env_mix import NO_OBJECTS, bind_envs
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.reports import unused_tools, why_untrained
from agentrl.rollout import Collected, episode_metrics
from agentrl.trainer import group_advantages
from agentrl.types import (
    Episode,
    EpisodeStop,
    Invalid,
    Message,
    Outcome,
    Score,
    Task,
    TurnRecord,
)
from tests.unit.trainer.batches import segment


def episode(
    member: int, outcome: Outcome, *, env: str = "calculator", turn: TurnRecord | None = None
) -> Episode:
    return Episode(
        id=f"train-s1-g0-m{member}-a0",
        env=env,
        task=Task(prompt="?"),
        split="train",
        group=0,
        member=member,
        attempt=0,
        seed=member,
        segments=(),
        messages=(),
        turns=(turn or TurnRecord(),),
        stop=EpisodeStop.ANSWERED,
        outcome=outcome,
    )


def test_every_episode_says_why_it_was_not_trained() -> None:
    failed = episode(2, Invalid(reason="the server answered 500", blame="engine"))
    played = Collected([episode(0, Score(value=0)), episode(1, Score(value=0))], [failed])
    assert why_untrained(played) == [
        "train-s1-g0-m0-a0: the policy sampled no token",
        "train-s1-g0-m1-a0: the policy sampled no token",
        "train-s1-g0-m2-a0: invalid: the server answered 500 (engine)",
    ]


def sampled(member: int, reward: float, dropped: str = "") -> Episode:
    played = episode(member, Score(value=reward), turn=TurnRecord(reward=reward))
    return replace(played, segments=(segment([0], [([1, 2], [3])]),), dropped=dropped)


def reasons(*played: Episode, rejected: Sequence[int] = ()) -> list[str]:
    names = {f"train-s1-g0-m{member}-a0" for member in rejected}
    lines = why_untrained(Collected(list(played), []), names)
    return [line.partition(": ")[2] for line in lines]


def test_what_a_correction_rejected_is_no_question_of_rewards() -> None:
    gone = "trainer.correct rejected all of its tokens"
    two = [sampled(0, 1.0), sampled(1, 1.0)]
    assert reasons(*two, rejected=[0, 1]) == [gone, gone]
    assert reasons(*two) == ["all 2 episodes of its group have the reward 1"] * 2
    four = [sampled(0, 1.0), sampled(1, 0.0), sampled(2, 0.0), sampled(3, 1.0, "cut")]
    alone = "its group has no other episode left to compare its reward 0 with"
    cut = "a limit cut it, and rollout.mask_cut leaves such episodes out"
    assert reasons(*four, rejected=[0, 1]) == [gone, gone, alone, cut]
    equal = "all 2 episodes that are left of 4 of its group have the reward 0"
    assert reasons(*four, rejected=[0]) == [gone, equal, equal, cut]


def warning_for(*played: Episode) -> str | None:
    config = load_run_config(flags=["--env", "calculator"]).config
    return unused_tools(Collected(list(played), []), bind_envs(config, NO_OBJECTS))


@pytest.mark.parametrize(
    ("errors", "said", "about_format"),
    [
        ((), "no episode of env calculator called a tool (calculator)", True),
        (("malformed", "unclosed", "too_large"), "of 3: 3 could not be read", True),
        (("unknown_tool",), "of 1: 1 named a tool that does not exist", False),
        (("bad_arguments", "bad_arguments"), "2 had arguments that do not fit", False),
        (
            ("malformed", "unknown_tool"),
            "1 named a tool that does not exist, 1 could not be read",
            False,
        ),
        (("malformed", "malformed", "unknown_tool"), "2 could not be read, 1 named", True),
    ],
)
def test_tools_that_are_never_reached_are_reported_with_the_reason(
    errors: tuple[str, ...], said: str, about_format: bool
) -> None:
    turn = TurnRecord(num_calls=len(errors), call_errors=errors)
    warning = str(warning_for(episode(0, Score(value=0), turn=turn)))
    assert said in warning
    assert ("--tool-format" in warning) is about_format


@pytest.mark.parametrize("errors", [(), ("tool_error",), ("tool_timeout",)])
def test_tools_that_ran_are_not_reported(errors: tuple[str, ...]) -> None:
    turn = TurnRecord(num_calls=1, call_errors=errors)
    assert warning_for(episode(0, Score(value=0), turn=turn)) is None


def test_an_unknown_tool_is_named_with_the_nearest() -> None:
    turn = TurnRecord(num_calls=1, call_errors=("unknown_tool",))
    answer = Message(role="tool", content="Error: ...", name="calculater", tool_call_id="call_0")
    played = replace(episode(0, Score(value=0), turn=turn), messages=(answer,))
    assert "does not exist ('calculater', did you mean calculator?);" in str(warning_for(played))


def test_a_call_that_the_limit_cut_off_is_told_from_one_that_is_unreadable() -> None:
    turn = TurnRecord(num_calls=1, call_errors=("unclosed",))
    whole = TurnRecord(num_calls=2, call_errors=("cut_off", "unclosed"))
    ended = replace(episode(0, Score(value=0), turn=whole), stop=EpisodeStop.TURN_TOKENS)
    assert "of 2: 2 were cut off at the limit of tokens;" in str(warning_for(ended))
    cut = replace(episode(0, Score(value=0), turn=turn), stop=EpisodeStop.TURN_TOKENS)
    warning = str(warning_for(cut))
    assert "1 were cut off at the limit of tokens; raise rollout.max_new_tokens" in warning
    metrics = episode_metrics(Collected([cut, episode(1, Score(value=0), turn=turn)], []))
    kinds = {name: value for name, value in metrics.items() if name.startswith("call_errors/")}
    assert kinds == {"call_errors/cut_off": 1, "call_errors/unreadable": 1}


def test_one_environments_calls_do_not_hide_another() -> None:
    config = load_run_config(flags=["--env", "calculator"]).config
    [env] = bind_envs(config, NO_OBJECTS)
    envs = [env, replace(env, name="other")]
    called = episode(0, Score(value=1), turn=TurnRecord(num_calls=1))
    silent = episode(1, Score(value=0), env="other")
    assert "env other" in str(unused_tools(Collected([called, silent], []), envs))


@pytest.mark.parametrize(("other", "flat"), [(0.3, 1.0), (0.1 + 0.2, 1.0), (0.31, 0.0)])
def test_a_group_is_flat_where_nothing_is_learnt_from_it(other: float, flat: float) -> None:
    turns = [TurnRecord(reward=0.3), TurnRecord(reward=other)]
    played = [episode(m, Score(value=0), turn=turn) for m, turn in enumerate(turns)]
    assert episode_metrics(Collected(played, []))["flat_groups"] == flat
    rewards_E = np.array([e.reward for e in played])
    assert group_advantages(rewards_E, np.zeros(2, np.int32)).any() == (flat == 0)
