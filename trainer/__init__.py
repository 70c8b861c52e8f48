"""The gradient side: algorithms as pure functions, packing, the optimizer step, checkpoints.

    Batch -> packing -> logprobs -> algorithms -> Trainer.update -> weights() -> the engine

This module needs no torch; `agentrl.trainer.trainer`, `.logprobs` and `.checkpoint` do.
"""

from agentrl.trainer.algorithms.advantage import group_advantages
from agentrl.trainer.config import (
    ClipConfig,
    CriticConfig,
    KlConfig,
    LoraConfig,
    RatioBandConfig,
    TrainerConfig,
)
from agentrl.trainer.stats import StepStats, SupervisedStats

__all__ = [
    "ClipConfig",
    "CriticConfig",
    "KlConfig",
    "LoraConfig",
    "RatioBandConfig",
    "StepStats",
    "SupervisedStats",
    "TrainerConfig",
    "group_advantages",
]
