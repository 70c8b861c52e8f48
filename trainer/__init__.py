"""The gradient side: algorithms as pure functions, packing, the optimizer step, checkpoints.

    Batch -> packing -> logprobs -> algorithms -> Trainer.update -> weights() -> the engine

This module needs no torch; `agentrl.trainer.trainer`, `.logprobs` and `.checkpoint` do.
"""

from agentrl.trainer.algorithms.advantage import group_advantages
from agentrl.trainer.config import (
    ClipConfig,
    CostConfig,
    CriticConfig,
    KlConfig,
    LoraConfig,
    RatioBandConfig,
    RewardScaleConfig,
    TrainerConfig,
)
from agentrl.trainer.updates import StepStats, SupervisedStats

__all__ = [
    "ClipConfig",
    "CostConfig",
    "CriticConfig",
    "KlConfig",
    "LoraConfig",
    "RatioBandConfig",
    "RewardScaleConfig",
    "StepStats",
    "SupervisedStats",
    "TrainerConfig",
    "group_advantages",
]
