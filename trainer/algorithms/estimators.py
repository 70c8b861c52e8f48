"""Advantage estimators: from the rewards of a batch to one advantage per token.

Suffixes: E episodes, N tokens of all rows.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agentrl.config.seams import Seam
from agentrl.errors import ConfigError, RunError
from agentrl.tools import user_code
from agentrl.trainer.algorithms.advantages.distill import distill
from agentrl.trainer.algorithms.advantages.gae import gae, turn_gae, vapo
from agentrl.trainer.algorithms.advantages.gdpo import gdpo
from agentrl.trainer.algorithms.advantages.gigpo import gigpo
from agentrl.trainer.algorithms.advantages.group_relative import dr_grpo, grpo
from agentrl.trainer.algorithms.advantages.maxrl import maxrl
from agentrl.trainer.algorithms.advantages.opo import opo
from agentrl.trainer.algorithms.advantages.pass_at_k import pass_at_k
from agentrl.trainer.algorithms.advantages.reinforce import reinforce
from agentrl.trainer.algorithms.advantages.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from agentrl.trainer.algorithms.advantages.remax import remax
from agentrl.trainer.algorithms.advantages.rloo import rloo
from agentrl.trainer.algorithms.advantages.safe import safe, safe_gae
from agentrl.trainer.algorithms.made_up import made_up_batch, trial
from agentrl.trainer.algorithms.needs import needs_of
from agentrl.trainer.algorithms.options import Option, defaults_of, resolve_function
from agentrl.trainer.algorithms.token_arrays import call_on_batch, token_array_fault
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch

Estimator = Callable[[Batch], NDArray[np.float32]]
"""Turns a batch's rewards into one advantage per token, [N] float32, 0 where nothing is trained.

What it needs of the run it declares (`agentrl.trainer.algorithms.needs`).
"""

BUILT_IN: Final[Mapping[str, Estimator]] = {
    "reinforce": reinforce,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "opo": opo,
    "gdpo": gdpo,
    "maxrl": maxrl,
    "pass_at_k": pass_at_k,
    "gigpo": gigpo,
    "gae": gae,
    "turn_gae": turn_gae,
    "vapo": vapo,
    "safe": safe,
    "safe_gae": safe_gae,
    "distill": distill,
}


@runtime_checkable
class Stateful(Protocol):
    """An estimator that a resumed run sets to where it was."""

    def state(self) -> object:
        """Where it is, as JSON has it."""
        ...

    def load(self, state: object) -> None:
        """Go on from there."""
        ...


@dataclass(frozen=True, slots=True)
class CheckedEstimator:
    """An estimator whose advantages are checked each time; `label` names it in messages."""

    label: str
    estimate: Estimator

    @property
    def needs(self) -> tuple[str, ...]:
        """What it declares."""
        return needs_of(self.estimate)

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options as they were given, the others with their defaults."""
        return defaults_of(self.estimate)

    @property
    def least_members(self) -> int:
        """In smaller groups it gives nothing but 0: there is one team at most."""
        return int(self.options["k"]) + 1 if self.function is pass_at_k else 1

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        """[N] The advantages; raises RunError if they are not what they have to be."""
        found = call_on_batch(self.label, self.estimate, batch)
        if fault := token_array_fault(found, batch):
            raise RunError(f"{self.label} {fault}")
        advantages_N = cast("NDArray[np.float32]", found)
        # What is not trained has none, whatever the function put there.
        return np.where(batch.mask_N, advantages_N, np.float32(0))

    def state(self) -> str:
        """Where its object is, as JSON; empty if it has no state."""
        if not isinstance(self.function, Stateful):
            return ""
        with user_code(f"{self.label}: state", fault=RunError):
            return json.dumps(self.function.state())

    def load(self, state: str) -> None:
        """Go on from a state."""
        if state and isinstance(self.function, Stateful):
            with user_code(f"{self.label}: load", fault=RunError):
                self.function.load(json.loads(state))

    @property
    def function(self) -> object:
        """What was named, without the options behind the name."""
        return getattr(self.estimate, "func", self.estimate)


def make_estimator(config: TrainerConfig, given: object = None) -> CheckedEstimator:
    """The configured estimator, tried on a made-up batch; `given` is it where it is an object.

    Raises:
        ConfigError: there is none, it needs a critic that is not there, or its advantages are not
            what they have to be.
    """
    seam = Seam("estimator", BUILT_IN, "agentrl.estimators")
    label, function = resolve_function(
        seam, config.estimator, given, "batch", keys=partial(_read_options_from_config, config)
    )
    checked = CheckedEstimator(label, cast("Estimator", function))
    if "critic" in checked.needs and not config.has_critic:
        raise ConfigError(
            f"{label} needs a critic, but trainer.algorithm is {config.algorithm}; set it to ppo "
            "or vapo"
        )
    with trial():
        before = checked.state()
        checked(made_up_batch(checked.needs))
        checked.load(before)  # nothing of the trial is left
    return checked


def _read_options_from_config(
    config: TrainerConfig, function: object, given: Mapping[str, Option]
) -> dict[str, Option]:
    """What keys of the configuration say of a built-in estimator's options.

    Raises ConfigError for what the critic has to know too, and so is a key of its own, and for an
    option that says the opposite of its key.
    """
    said: dict[str, Option] = {"scale_by_std": config.scale_by_std}
    if given.get("scale_by_std") and not config.scale_by_std:
        raise ConfigError(
            f"trainer.scale_by_std: got false with estimator {config.estimator}, whose own option "
            "says otherwise; leave one of both out"
        )
    if "critic" in needs_of(function):
        critic = {"discount": config.critic.discount, "decay": config.critic.decay}
        for name in given.keys() & critic.keys():
            raise ConfigError(
                f"estimator {config.estimator}: option {name}: set trainer.critic.{name} instead"
            )
        said |= critic
    return {name: said[name] for name in defaults_of(function).keys() & said.keys()}
