"""What an episode becomes at its end."""

import math
from dataclasses import replace

from agentrl.rollout.episode_record import Segments
from agentrl.rollout.episode_state import EpisodeSpec, Running
from agentrl.types import Invalid, Score, Task, TurnRecord

SPEC = EpisodeSpec(
    id="e", env="env", task=Task(prompt="p"), split="train", group=0, member=0, attempt=0, seed=0
)


def test_rewards_without_a_finite_sum_are_no_score() -> None:
    turns = [TurnRecord(reward=1.7e308), TurnRecord(reward=1.7e308)]
    running = Running(Segments(10), turns=turns, outcome=Score(value=1.0))
    episode = running.episode(SPEC, wall_s=0.0)
    assert isinstance(episode.outcome, Invalid)
    assert episode.outcome.blame == "environment"
    assert "no finite sum" in episode.outcome.reason
    fine = replace(running, turns=turns[:1]).episode(SPEC, wall_s=0.0)
    assert math.isclose(fine.reward, 1.7e308)
