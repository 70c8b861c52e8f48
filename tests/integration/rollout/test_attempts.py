"""Attempts that fail: played again, left out, and too many of them."""

import pytest

from agentrl.envs.calculator import Calculator
from agentrl.errors import BreakerTripped, EngineError
from agentrl.rollout import Codec, Collector, gather_groups
from agentrl.testing import flaky_engine
from agentrl.types import (
    EpisodeSession,
    EpisodeStop,
    Invalid,
    Score,
)
from tests.integration.rollout.played import engine, jobs, settings


async def test_a_failed_episode_is_played_again_with_a_fresh_environment(codec: Codec) -> None:
    def fail_at_second_turn(session: EpisodeSession) -> EngineError | None:
        assert session.view is not None
        return next(failures, None) if len(session.view().messages) > 2 else None

    failures = iter([EngineError("the server answered 500")] * 3)
    flaky = flaky_engine(engine(codec), fail_at_second_turn)
    collector = Collector(engine=flaky, codec=codec, settings=settings(attempts=4))
    collected = await gather_groups(collector.collect(jobs(4), group_size=2))
    assert len(collected.episodes) == 8
    assert len(collected.invalid) == 3
    assert all(e.outcome == Score(value=1.0) for e in collected.episodes)
    for episode in collected.invalid:
        assert episode.outcome == Invalid(reason="the server answered 500", blame="engine")
        assert episode.stop is EpisodeStop.INVALID
        assert len(episode.turns) == 1


async def test_episodes_that_never_succeed_are_left_out(codec: Codec) -> None:
    class Breaks(Calculator):
        def setup(self) -> None:
            if self.task.id == broken:
                raise ValueError("no such world")

    played = jobs(10, Breaks)
    broken = played[4].task.id
    collector = Collector(engine=engine(codec), codec=codec, settings=settings(attempts=2))
    collected = await gather_groups(collector.collect(played, group_size=2))
    groups = [job.key.group for job in played]
    assert {e.group for e in collected.episodes} == {*groups} - {groups[4]}
    assert len(collected.invalid) == 4
    assert {e.outcome.blame for e in collected.invalid if isinstance(e.outcome, Invalid)} == {
        "environment"
    }
    assert "ValueError: no such world" in str(collected.invalid[0].outcome)


async def test_too_many_failures_stop_the_run_with_a_table(codec: Codec) -> None:
    class Breaks(Calculator):
        def setup(self) -> None:
            raise ValueError("no such world")

    collector = Collector(
        engine=engine(codec), codec=codec, settings=settings(max_invalid_share=0.5)
    )
    said = (
        r"first by the environment in train-s1-g\d-m\d-a0:\n"
        r".*environment: setup raised ValueError: no such world"
    )
    with pytest.raises(BreakerTripped, match=said):
        await gather_groups(collector.collect(jobs(10, Breaks), group_size=2))


async def test_failures_of_half_the_attempts_stop_nothing_early(codec: Codec) -> None:
    class Breaks(Calculator):
        def setup(self) -> None:
            if self.task.id in broken:
                raise ValueError("no such world")

    played = jobs(10, Breaks)
    broken = {job.task.id for job in played[:5]}
    collector = Collector(
        engine=engine(codec), codec=codec, settings=settings(attempts=1, max_invalid_share=0.5)
    )
    collected = await gather_groups(collector.collect(played, group_size=2))
    assert (len(collected.invalid), len(collected.episodes)) == (10, 10)


async def test_more_lost_than_allowed_stops_the_run_after_the_last_group(codec: Codec) -> None:
    class Breaks(Calculator):
        def setup(self) -> None:
            if self.task.id == played[1].task.id:
                raise ValueError("no such world")

    played = jobs(4, Breaks)
    chosen = settings(attempts=1, max_invalid_share=0.2)
    groups = Collector(engine=engine(codec), codec=codec, settings=chosen).collect(
        played, group_size=2
    )
    came = [await anext(groups) for _ in range(4)]
    assert sum(len(group.episodes) for group in came) == 6
    with pytest.raises(BreakerTripped, match="2 of 8 episodes stayed without a score"):
        await anext(groups)
