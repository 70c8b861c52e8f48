"""Advantage estimators: from the rewards of a batch to one advantage per token.

Suffixes: E episodes, N tokens of all rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from agentrl.config.seams import Seam, check_function, instance_of
from agentrl.errors import AgentrlError, ConfigError, RunError
from agentrl.tools import user_code
from agentrl.trainer.algorithms.advantage import group_advantages, token_advantages
from agentrl.trainer.algorithms.gae import Gae
from agentrl.trainer.algorithms.made_up import made_up_batch
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch

Estimator = Callable[[Batch], NDArray[np.float32]]
"""Turns a batch's rewards into one advantage per token, [N] float32, 0 where nothing is trained.

One that reads the critic's values says so by an attribute `needs_critic = True`.
"""

OF_ALGORITHM: Final[Mapping[str, str]] = {"grpo": "grpo", "reinforce": "reinforce", "ppo": "gae"}
"""The built-in estimator of each algorithm."""


def grpo(batch: Batch, *, scale_by_std: bool = True) -> NDArray[np.float32]:
    """Group-relative advantages of whole episodes, spread over their trained tokens."""
    advantages_E = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=scale_by_std)
    return token_advantages(batch, advantages_E)


def reinforce(batch: Batch) -> NDArray[np.float32]:
    """The rewards themselves, spread over their episodes' trained tokens: no baseline."""
    return token_advantages(batch, batch.rewards_E)


@dataclass(frozen=True, slots=True)
class CheckedEstimator:
    """An estimator whose advantages are checked each time; `label` names it in messages."""

    label: str
    estimate: Estimator

    @property
    def needs_critic(self) -> bool:
        """True if it reads the critic's values."""
        return bool(getattr(self.estimate, "needs_critic", False))

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        """[N] The advantages; raises RunError if they are not what they have to be."""
        with user_code(self.label, fault=RunError):
            advantages_N = self.estimate(batch)
        if fault := advantages_fault(advantages_N, batch):
            raise RunError(f"{self.label} {fault}")
        return advantages_N


def make_estimator(config: TrainerConfig, given: object = None) -> CheckedEstimator:
    """The configured estimator, tried on a made-up batch; `given` is it where it is an object.

    Raises:
        ConfigError: there is none, it needs a critic that is not there, or its advantages are not
            what they have to be.
    """
    critic = config.critic
    seam = Seam(
        "estimator",
        {
            "grpo": partial(grpo, scale_by_std=config.scale_by_std),
            "reinforce": reinforce,
            "gae": Gae(
                discount=critic.discount, decay=critic.decay, scale_by_std=config.scale_by_std
            ),
        },
        "agentrl.estimators",
    )
    ref = config.estimator or OF_ALGORITHM[config.algorithm]
    label = seam.label(ref)
    found = instance_of(seam.find(ref if given is None else given), label)
    check_function(found, label, "batch")
    checked = CheckedEstimator(label, cast("Estimator", found))
    if checked.needs_critic and config.algorithm != "ppo":
        raise ConfigError(
            f"{label} needs a critic, but trainer.algorithm is {config.algorithm}; set it to ppo"
        )
    try:
        checked(made_up_batch(with_values=checked.needs_critic))
    except AgentrlError as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{said}; it was tried on a made-up batch") from error
    return checked


def advantages_fault(advantages_N: object, batch: Batch) -> str | None:
    """What is wrong with the advantages of a batch, after the name of what made them."""
    expected = f"expected a float32 array of {batch.num_tokens}, one for each token of the batch"
    if type(advantages_N) is not np.ndarray:
        return f"gave a {type(advantages_N).__name__}, {expected}"
    found = cast("NDArray[np.float32]", advantages_N)
    if found.shape != (batch.num_tokens,) or found.dtype != np.float32:
        return f"gave an array of {found.dtype} of shape {found.shape}, {expected}"
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        return f"gave {found[wrong[0]]} for token {wrong[0]} of the batch, expected finite numbers"
    return None
