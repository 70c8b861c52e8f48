from dataclasses import replace

import numpy as np

from agentrl.rollout import make_batch
from agentrl.tokens import TokenRecord, seal, verify_batch
from agentrl.types import Episode, EpisodeStop, Score, Segment, StopReason, Task, TurnRecord

EPISODE = Episode(
    id="e0",
    env="env",
    task=Task(prompt="hi"),
    split="train",
    group=0,
    member=0,
    attempt=0,
    seed=0,
    segments=(),
    messages=(),
    turns=(TurnRecord(reward=1.0),),
    stop=EpisodeStop.ANSWERED,
    outcome=Score(value=1.0),
)


def segment(sampled: list[int]) -> Segment:
    record = TokenRecord(vocab_size=10)
    record.append_prompt([1, 2, 3])
    if sampled:
        num = len(sampled)
        channels = {"experts": np.ones((num, 2), dtype=np.int16)}
        logprobs, versions = [-1.0] * num, [0] * num
        record.append_sampled(seal(sampled, logprobs, versions, StopReason.STOP, channels))
    return record.close()


def test_a_prompt_without_a_turn_has_empty_side_channels() -> None:
    """Such an episode had no room for a completion; its siblings' channels stay aligned."""
    full = replace(EPISODE, segments=(segment([4, 5]),))
    cut = replace(EPISODE, id="e1", segments=(segment([]),))
    for episodes in ([full, cut], [cut, full]):
        batch = make_batch(episodes, temperature=1.0)
        assert batch.channels["experts"].shape == (8, 2)
        assert batch.channels["experts"].sum() == 4
        assert verify_batch(batch) == batch.num_trained == 2
