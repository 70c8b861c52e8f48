"""Episodes go on from the log of a run that was killed, with the same tokens and no call twice."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices, ScriptedAgent, ToolEnv
from agentrl.errors import RunError
from agentrl.rollout import Codec, EpisodeKey, EpisodeLimits, GroupJob
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.episode_record import EpisodeRecord
from agentrl.rollout.turn_log import CalledBefore, TurnLog
from agentrl.tokens import Tokenizer, seal
from agentrl.tools import tool
from agentrl.types import (
    AssistantTurn,
    CallError,
    CallErrorReason,
    Completion,
    Episode,
    EpisodeSession,
    EpisodeStop,
    Invalid,
    Sampling,
    Score,
    StopReason,
    Task,
    ToolCall,
)

KEY = EpisodeKey.first(run=0, step=1, place=0)


def call(name: str, **arguments: Any) -> AssistantTurn:
    return AssistantTurn(calls=(ToolCall(name=name, arguments=arguments, id="call_0"),))


TURNS = (call("look"), call("pay", cents=3), call("look"), call("pay", cents=4))
PAY_TWICE = AssistantTurn(
    calls=tuple(
        ToolCall(name="pay", arguments={"cents": cents}, id=f"call_{i}")
        for i, cents in enumerate((3, 60))
    )
)


async def die() -> None:
    """As if the process were gone: nothing of the episode goes on."""
    next(task for task in asyncio.all_tasks() if task.get_name() == "episode").cancel()
    await asyncio.sleep(60)


class Shop(ToolEnv):
    """Looks at a shelf, which it may, and pays, which it may not do twice."""

    paid: ClassVar[list[int]]
    """Shared by all that is made of a subclass: the world outside."""
    dies_at: int = -1
    """Of payments."""
    turns: Sequence[AssistantTurn] = TURNS
    is_moody = False

    def setup(self) -> None:
        self.looks = 0

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str) -> Task:
        return Task(prompt="Buy.")

    @tool
    def look(self) -> str:
        """Look."""
        self.looks += 1
        return f"{self.looks} of {len(self.paid) if self.is_moody else 9}"

    @tool(side_effects=True)
    async def pay(self, cents: int) -> str:
        """Pay.

        Args:
            cents: how much.
        """
        self.paid.append(cents)
        if cents > 50:
            await asyncio.sleep(60)
        if len(self.paid) == self.dies_at:
            await die()
        self.reward(cents / 10, "paid")
        return f"{cents} are paid"

    def score(self, answer: str) -> Score:
        return Score(value=float(self.looks))


def shop(**attributes: Any) -> type[Shop]:
    return type("Shop", (Shop,), {"paid": [], **attributes})


class Counting(ScriptedEngine):
    """Says how often it was asked, and dies at a number of times."""

    def __init__(self, codec: Codec, env: type[Shop], version: int, dies_at: int) -> None:
        renderer = codec.renderer(env().tool_schemas)
        super().__init__(ScriptedAgent(env.turns), renderer, vocab_size=768)
        self._serves, self.dies_at, self.asked = version, dies_at, 0

    waits_at = 0

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.asked += 1
        if self.asked == self.dies_at:
            await die()
        if self.asked == self.waits_at:
            await asyncio.sleep(60)
        found = await super().generate(ids, sampling, session)
        versions = np.full(len(found.ids_T), self._serves)
        return seal(found.ids_T, found.logprobs_T, versions, found.stop_reason)


class Bench:
    def __init__(self, folder: Path, file: Path) -> None:
        self.codec, self.file = Codec(Tokenizer.load(folder)), file

    async def play(
        self,
        env: type[Shop],
        *,
        version: int = 0,
        dies_at: int = 0,
        waits_at: int = 0,
        wall_s: float = 30.0,
    ) -> tuple[Episode | None, int]:
        """The episode, or None where the run was killed first; how often the engine was asked."""
        log, services = TurnLog(self.file, version), EnvServices()
        engine = Counting(self.codec, env, version, dies_at)
        engine.waits_at = waits_at
        runner = EpisodeRunner(
            codec=self.codec,
            generate=engine.generate,
            limits=EpisodeLimits(
                max_new_tokens=64, max_context_tokens=1024, wall_s=wall_s, setup_s=5.0
            ),
            temperature=1.0,
            log=log,
        )
        job = GroupJob(
            key=KEY,
            env="env",
            make_env=lambda: env(services=services),
            task=Task(prompt="Buy."),
            split="train",
        )
        try:
            record = EpisodeRecord(job, KEY, self.codec.tokenizer.vocab_size)
            episode = asyncio.create_task(runner.run(record), name="episode")
            return await episode, engine.asked
        except asyncio.CancelledError:
            return None, engine.asked
        finally:
            log.close()
            services.close()


@pytest.fixture
def bench(tiny_folder: Path, tmp_path: Path) -> Bench:
    return Bench(tiny_folder, tmp_path / "turns.jsonl")


async def whole(folder: Path, tmp_path: Path) -> Episode:
    episode, _ = await Bench(folder, tmp_path / "whole.jsonl").play(shop())
    assert episode is not None
    return episode


@pytest.mark.parametrize("dies_at", [1, 2, 3, 4, 5])
async def test_a_killed_episode_goes_on_where_it_was(
    bench: Bench, tiny_folder: Path, tmp_path: Path, dies_at: int
) -> None:
    undisturbed, env = await whole(tiny_folder, tmp_path), shop()
    killed, _ = await bench.play(env, dies_at=dies_at)
    assert killed is None
    resumed, asked = await bench.play(env)
    assert resumed is not None
    assert asked == len(undisturbed.turns) - (dies_at - 1)
    assert env.paid == [3, 4]
    assert resumed.messages == undisturbed.messages
    assert [s.digest for s in resumed.segments] == [s.digest for s in undisturbed.segments]
    assert resumed.reward == pytest.approx(undisturbed.reward)
    assert dict(resumed.turns[1].parts) == pytest.approx({"paid": 0.3})
    again, asked = await bench.play(env)  # an episode that ended is played again without an engine
    assert again is not None
    assert asked == 0
    assert [s.digest for s in again.segments] == [s.digest for s in undisturbed.segments]


async def test_a_call_that_was_cut_off_is_not_made_again(bench: Bench) -> None:
    env = shop(dies_at=1)
    killed, _ = await bench.play(env)
    assert killed is None
    resumed, asked = await bench.play(env)
    assert resumed is not None
    assert isinstance(resumed.outcome, Invalid)
    assert "called a tool with side effects in turn 1" in resumed.outcome.reason
    assert not resumed.outcome.retryable
    assert (env.paid, asked) == ([3], 0)


async def test_of_two_calls_the_one_that_a_limit_cut_off_is_not_made_again(bench: Bench) -> None:
    env = shop(turns=(PAY_TWICE,))
    cut, _ = await bench.play(env, wall_s=0.3)
    assert cut is not None
    assert cut.stop is EpisodeStop.WALL_TIME
    resumed, _ = await bench.play(env, wall_s=0.3)
    assert resumed is not None
    assert isinstance(resumed.outcome, Invalid)
    assert "ended before its answer was written down" in resumed.outcome.reason
    assert env.paid == [3, 60]


async def test_a_limit_in_a_later_turn_leaves_the_answers_of_an_earlier_one(bench: Bench) -> None:
    env = shop()
    cut, _ = await bench.play(env, waits_at=3, wall_s=0.3)
    assert cut is not None
    assert cut.stop is EpisodeStop.WALL_TIME
    resumed, _ = await bench.play(env)
    assert resumed is not None
    assert isinstance(resumed.outcome, Score)
    assert env.paid == [3, 4]


def test_a_call_that_cannot_run_has_no_side_effects() -> None:
    broken = CallError(reason=CallErrorReason.MALFORMED, message="no", name="pay", id="call_0")
    cut_off = replace(call("pay", cents=3), stop_reason=StopReason.LENGTH)
    assert shop()().has_side_effects(call("pay", cents=3))
    for turn in (AssistantTurn(calls=(broken,)), cut_off, call("look")):
        assert not shop()().has_side_effects(turn)


async def test_an_episode_that_paid_is_not_tried_again(bench: Bench) -> None:
    class Broken(Shop):
        paid: ClassVar[list[int]] = []

        def score(self, answer: str) -> Score:
            raise ValueError("no score")

    episode, _ = await bench.play(Broken)
    assert episode is not None
    assert isinstance(episode.outcome, Invalid)
    assert not episode.outcome.retryable


async def test_what_was_sampled_under_weights_that_are_gone_is_sampled_again(bench: Bench) -> None:
    env = shop()
    killed, _ = await bench.play(env, version=2, dies_at=2)
    resumed, asked = await bench.play(env, version=1, dies_at=3)
    assert killed is resumed is None
    assert asked == 3
    # Version 2 is there once more, but it is another one: what was cut stays cut.
    last, asked = await bench.play(env, version=2)
    assert last is not None
    assert asked == len(last.turns) - 2
    versions = [np.unique(s.versions_T[s.mask_T]).tolist() for s in last.segments]
    assert versions == [[1, 2]]
    assert env.paid == [3, 4]


async def test_a_call_under_weights_that_are_gone_is_told(bench: Bench) -> None:
    env = shop()
    await bench.play(env, version=2, dies_at=3)
    resumed, _ = await bench.play(env, version=1)
    assert resumed is not None
    assert isinstance(resumed.outcome, Invalid)
    assert "other weights" in resumed.outcome.reason
    assert env.paid == [3]


async def test_an_environment_that_answers_otherwise_is_sampled_on_from_there(
    bench: Bench,
) -> None:
    env = shop(is_moody=True)
    await bench.play(env, dies_at=2)
    env.paid.append(1)
    resumed, asked = await bench.play(env)
    assert resumed is not None
    assert isinstance(resumed.outcome, Score)
    assert asked == len(resumed.turns) - 1


@pytest.mark.parametrize(
    ("part", "other"),
    [(b'"calls"', b'"cells"'), (b'"digest":"', b'"digest":"0'), (b'"<f4",[3]', b'"<f4",[4]')],
)
def test_what_nobody_wrote_is_refused(tmp_path: Path, part: bytes, other: bytes) -> None:
    log = TurnLog(tmp_path / "turns.jsonl", 0)
    completion = seal([5, 6, 7], [-0.5, -0.25, 0.0], [0, 1, 1], StopReason.STOP)
    for _ in range(2):
        log.write_completion(KEY, [1, 2], completion, calls=False)
    log.close()
    head, first, second = (tmp_path / "turns.jsonl").read_bytes().splitlines()
    assert part in second
    lines = [head, first, second.replace(part, other), b""]
    (tmp_path / "turns.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(RunError, match=r"line 3 is not what this run wrote \(.*; remove the file"):
        TurnLog(tmp_path / "turns.jsonl", 1)


def test_another_run_s_turns_are_refused_and_under_other_settings_none_is_gone_on_with(
    tmp_path: Path,
) -> None:
    file, completion = tmp_path / "turns.jsonl", seal([5], [-0.5], [0], StopReason.STOP)
    log = TurnLog(file, 0, "mine", {"temperature": 1.0, "staleness": 4})
    log.write_completion(KEY, [1], completion, calls=True)
    log.close()
    with pytest.raises(RunError, match="it is another run's"):
        TurnLog(file, 0, "yours", {"temperature": 1.0, "staleness": 4})
    log = TurnLog(file, 0, "mine", {"temperature": 1.0, "staleness": 0})
    assert log.changed == ["staleness"]
    with pytest.raises(CalledBefore):
        log.take_recorded(KEY.id, [1])
    log.close()
    log = TurnLog(file, 0, "mine", {"temperature": 1.0, "staleness": 0})
    assert not log.changed
    assert log.recorded == {KEY.id: 0}  # what was cut stays cut
    log.keep_groups(frozenset())
    log.close()
    log = TurnLog(file, 0, "mine", {"temperature": 1.0, "staleness": 0})
    with pytest.raises(CalledBefore):  # a group that waits to be played again is kept
        log.take_recorded(KEY.id, [1])
    log.close()


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"could not be read \(Is a directory\)"):
        TurnLog(tmp_path, 1)


def test_only_open_groups_stay_and_an_empty_log_goes(tmp_path: Path) -> None:
    path, keys = (
        tmp_path / "turns.jsonl",
        [EpisodeKey.first(run=0, step=1, place=p) for p in (0, 1)],
    )
    experts = {"experts": np.arange(6, dtype=np.uint8).reshape(3, 2)}
    completion = seal([5, 6, 7], [-0.5, -0.25, 0.0], [0, 1, 1], StopReason.STOP, experts, 2)
    log = TurnLog(path, 0)
    for key in keys:
        log.write_completion(key, [1, 2], completion, calls=False)
    log.keep_groups({keys[1].group})
    log.close()
    log = TurnLog(path, 1)
    assert log.recorded == {keys[1].id: 1}
    assert log.oldest_version(keys[1].group) == 0
    assert log.take_recorded(keys[0].id, [1, 2]) is None
    found = log.take_recorded(keys[1].id, [1, 2])
    assert found is not None
    assert found.digest == completion.digest
    assert found.cached_tokens == 2
    log.forget()
    log.close()
    assert not path.exists()
