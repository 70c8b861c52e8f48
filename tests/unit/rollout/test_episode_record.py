"""What an episode becomes at its end."""

import math

from agentrl.envs import Transition
from agentrl.envs.calculator import Calculator
from agentrl.rollout import EpisodeKey, GroupJob
from agentrl.rollout.episode_record import EpisodeRecord
from agentrl.tokens.hash_chain import seal
from agentrl.types import AssistantTurn, Episode, Invalid, Score, StopReason, Task

KEY = EpisodeKey.first(run=0, step=1, place=0)
JOB = GroupJob(key=KEY, env="env", make_env=Calculator, task=Task(prompt="p"), split="train")


def finish(*rewards: float) -> Episode:
    record = EpisodeRecord(JOB, KEY, vocab_size=10)
    completion = seal([1], [0.0], [0], StopReason.STOP)
    for reward in rewards:
        record.book_sampled(completion, 0.0)
        record.hand_over(AssistantTurn())
        record.book(Transition(reward=reward))
    record.outcome = Score(value=1.0)
    return record.finish(wall_s=0.0)


def test_rewards_without_a_finite_sum_are_no_score() -> None:
    episode = finish(1.7e308, 1.7e308)
    assert isinstance(episode.outcome, Invalid)
    assert episode.outcome.blame == "environment"
    assert "no finite sum" in episode.outcome.reason
    assert math.isclose(finish(1.7e308).reward, 1.7e308)
