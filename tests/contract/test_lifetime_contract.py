"""The rows of docs/environments.md on beginning and end, tasks, parameters and Gymnasium."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import seeding
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.tools import tool
from agentrl.types import (
    EpisodeStop,
    Message,
    Score,
    Task,
)
from tests.contract.episodes import CLOSED, Base, Guarded, call, play, say, texts

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


def test_the_generator_is_gymnasiums_of_the_seed() -> None:
    env, options = Numbers(), {"index": 0}
    for seed in (5, 6, 5):
        asyncio.run(env.areset(seed=seed, options=options))
        expected, _ = seeding.np_random(seed)
        assert env.rng.bit_generator.state == expected.bit_generator.state
        assert env.np_random_seed == seed
    env.reset(seed=7, options=options)
    assert vars(env)["_np_random"] is not None  # where Gymnasium's checker looks for it
    env.np_random = np.random.default_rng(3)
    assert env.rng.integers(100) == np.random.default_rng(3).integers(100)
    with pytest.raises(gymnasium.error.Error, match="Seed must be greater or equal to zero"):
        env.reset(seed=-1)
    env.close()


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


async def test_sync_calls_work_in_a_running_loop_unless_the_episode_is_that_loops() -> None:
    env = Base()
    assert env.reset(seed=0)[0] == "Go."
    assert env.step("yes")[1] == 1.0
    env.close()
    await env.areset(seed=0)
    for call_here in (env.reset, lambda: env.step("yes"), env.close):
        with pytest.raises(RuntimeError, match="await areset, astep and aclose"):
            call_here()
    await env.aclose()
    env.close()
