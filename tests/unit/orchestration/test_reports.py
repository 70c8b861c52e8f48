"""What a step says when nothing was trained or no tool was called."""

from dataclasses import replace

import pytest

from agentrl.errors import ConfigError
from agentrl.orchestration.bind import NO_OBJECTS, bind_envs
from agentrl.orchestration.load import check_resumable, load_run_config
from agentrl.orchestration.reports import unused_tools, why_untrained
from agentrl.rollout import Collected
from agentrl.types import Episode, EpisodeStop, Invalid, Outcome, Score, Task, TurnRecord


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


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (TurnRecord(), "called a tool (calculator)"),
        (TurnRecord(num_calls=1, call_errors=("malformed",)), "1 calls could not be read"),
        (TurnRecord(num_calls=1, call_errors=("tool_error",)), None),
        (TurnRecord(num_calls=1), None),
    ],
)
def test_tools_that_are_never_called_are_reported(turn: TurnRecord, said: str | None) -> None:
    config = load_run_config(flags=["--env", "calculator"]).config
    envs = bind_envs(config, NO_OBJECTS)
    warning = unused_tools(Collected([episode(0, Score(value=0), turn=turn)], []), envs)
    assert (warning is None) == (said is None)
    assert said is None or said in str(warning)


def test_one_environments_calls_do_not_hide_another() -> None:
    config = load_run_config(flags=["--env", "calculator"]).config
    [env] = bind_envs(config, NO_OBJECTS)
    envs = [env, replace(env, name="other")]
    called = episode(0, Score(value=1), turn=TurnRecord(num_calls=1))
    silent = episode(1, Score(value=0), env="other")
    assert "env other" in str(unused_tools(Collected([called, silent], []), envs))


def test_a_resumed_run_keeps_its_tasks(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("run") / "config.toml"
    file.write_text('seed = 3\n\n[[env]]\nname = "calculator"\n')
    same = load_run_config(file=file, flags=["--steps", "9", "--lr", "1e-4"]).config
    check_resumable(file, same, NO_OBJECTS)
    other = load_run_config(file=file, flags=["--seed", "4"]).config
    with pytest.raises(ConfigError, match="seed: got 4, but the run was started with 3"):
        check_resumable(file, other, NO_OBJECTS)
