"""The learning rate as a function of the step: nothing to save, nothing to restore."""

import math
from typing import assert_never

from agentrl.trainer.config import TrainerConfig


def learning_rate(step: int, config: TrainerConfig, total_steps: int) -> float:
    """The rate of optimizer step `step` (from 0); it reaches 0 after `total_steps`, if it falls."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    left = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / left)
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - progress)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * progress)) / 2
    assert_never(config.schedule)
