"""The sampling side: episodes, groups of them, and the batch that they become."""

from agentrl.rollout.admission import Admission, EndedGroup, Judgement
from agentrl.rollout.batch import make_batch
from agentrl.rollout.codec import Codec, LongPrompt, find_long
from agentrl.rollout.collect import Collector
from agentrl.rollout.collected import Collected, PlayedGroup, gather_groups
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.driver import CollectSettings
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.rollout.episode_record import GroupJob
from agentrl.rollout.metrics import NEVER_RAN, call_faults, episode_metrics, succeeded, successes
from agentrl.rollout.sampler import EnvSource, TaskRef, task_stream
from agentrl.types.episode import EpisodeKey, derive_seed

__all__ = [
    "NEVER_RAN",
    "Admission",
    "Codec",
    "CollectSettings",
    "Collected",
    "Collector",
    "EndedGroup",
    "EnvSource",
    "EpisodeKey",
    "EpisodeLimits",
    "EpisodeRunner",
    "GroupJob",
    "Judgement",
    "LongPrompt",
    "PlayedGroup",
    "RolloutConfig",
    "TaskRef",
    "call_faults",
    "derive_seed",
    "episode_metrics",
    "find_long",
    "gather_groups",
    "make_batch",
    "succeeded",
    "successes",
    "task_stream",
]
