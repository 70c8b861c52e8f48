"""What is done to a batch between the episodes and the update.

passes of the models ─▶ correction ─▶ shaping of rewards ─▶ advantages ─▶ weights ─▶ Trainer.update

A pass (the critic's values, the reference's logprobs, the policy's own) is made where something
needs it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl.engine.sglang.teacher import TeacherServer
from agentrl.trainer.algorithms.constraint import Constraint
from agentrl.trainer.algorithms.corrections import (
    CheckedCorrection,
    correction_metrics,
    leave_out_rejected,
    make_correction,
)
from agentrl.trainer.algorithms.estimators import CheckedEstimator, make_estimator
from agentrl.trainer.algorithms.kl_reward import KlPenalty
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.minibatches import deal_groups, split_minibatches
from agentrl.trainer.algorithms.normalisations import CheckedNormalisation, make_normalisation
from agentrl.trainer.algorithms.shaping import RewardShaping
from agentrl.trainer.config import RewardScaleConfig, TrainerConfig
from agentrl.trainer.protocol import Trainer
from agentrl.types import Batch, Json
from agentrl.types.episode import derive_seed

_OUTPUTS: Final = {
    "critic": "values",
    "reference": "reference",
    "teacher": "reference",
    "proximal": "proximal",
}
"""What of `Trainer.with_outputs` a need asks for."""

Step = Callable[[Batch], Batch]
"""Gives the batch with something of it replaced."""


class Shaping(Protocol):
    """Replaces what advantages and penalties are made of, and may learn from what it saw."""

    def __call__(self, batch: Batch) -> Batch:
        """The shaped batch."""
        ...

    def state(self) -> Json:
        """What `load` takes."""
        ...

    def load(self, state: Json) -> None:
        """Go on from a state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecipe:
    """The checked functions of a run, and the order in which they are called."""

    estimator: CheckedEstimator
    normalisation: CheckedNormalisation
    correction: CheckedCorrection | None = None
    """Takes tokens out of the mask, or writes `factors_N`."""
    shapings: Mapping[str, Shaping] = field(default_factory=dict[str, Shaping])
    """By the section of the configuration, in their order."""
    needs: frozenset[str]
    """What the functions and the loss need, all together."""
    minibatches: int = 1
    seed: int = 0
    """Decides, with the trainer's step, which groups share a mini-batch."""
    teacher: TeacherServer | None = None
    """Whom the reference's logprobs are asked of, if it is no model of the trainer's."""

    def prepare(self, batch: Batch, trainer: Trainer) -> Batch:
        """The batch as `Trainer.update` takes it; raises RunError for what a function got wrong."""
        batch = self._add_model_outputs(batch, trainer)
        if self.correction is not None:
            batch = self.correction(batch)
        for shape in self.shapings.values():
            batch = shape(batch)
        batch = replace(batch, advantages_N=self.estimator(leave_out_rejected(batch)))
        if self.minibatches > 1:
            seed = derive_seed(self.seed, "minibatches", trainer.step)
            batch = replace(batch, minibatch_E=deal_groups(batch, self.minibatches, seed))
        return replace(batch, weights_N=self._weigh_tokens(batch))

    def _weigh_tokens(self, batch: Batch) -> NDArray[np.float32]:
        """[N] What each token counts in its mini-batch, normalised as a batch of its own."""
        weights_N = np.zeros(batch.num_tokens, dtype=np.float32)
        for part, chosen_N in split_minibatches(batch):
            weights_N[chosen_N] = self.normalisation(part)
        return weights_N if batch.factors_N is None else weights_N * batch.factors_N

    def teaches(self, batch: Batch) -> bool:
        """True if the estimator has an advantage for any token; nothing learns from it.

        Penalties are left out, which take passes.
        """
        before = self.state()
        for shape in self.shapings.values():
            if isinstance(shape, RewardShaping):
                batch = shape(batch)
            elif isinstance(shape, Constraint):
                batch = shape.attach(batch)
        found = bool(self.estimator(batch).any())
        self.load(before)
        return found

    def measure(self, batch: Batch) -> dict[str, float]:
        """What `metrics.jsonl` has of a prepared batch."""
        found = {"kl_coef": batch.kl_coef, "multiplier": batch.multiplier}
        if batch.costs_E is not None and len(batch.costs_E):
            found["cost"] = float(batch.costs_E.mean())
        penalty = self.shapings.get("kl")
        if isinstance(penalty, KlPenalty):
            found["kl_before"] = penalty.divergence
        shaped = {name: value for name, value in found.items() if value is not None}
        return shaped | correction_metrics(batch)

    def state(self) -> str:
        """What a resumed run goes on from, as JSON."""
        found: dict[str, Json] = {name: shape.state() for name, shape in self.shapings.items()}
        return json.dumps({"estimator": self.estimator.state(), **found})

    def load(self, state: str) -> None:
        """Go on from a state; what it lacks begins anew."""
        found: dict[str, Json] = json.loads(state or "{}")
        self.estimator.load(str(found.get("estimator", "")))
        for name in self.shapings.keys() & found.keys():
            self.shapings[name].load(found[name])

    def _add_model_outputs(self, given: Batch, trainer: Trainer) -> Batch:
        """With what the models say of all that was recorded, also of tokens that are too old.

        A rejected token without a proximal logprob would count as one that the trainer is sure of.
        """
        batch = given
        if given.rejected_N is not None:
            batch = replace(given, mask_N=given.mask_N | given.rejected_N)
        asked = list(dict.fromkeys(_OUTPUTS[need] for need in _OUTPUTS if need in self.needs))
        if self.teacher is not None and "reference" in asked:
            batch = self.teacher.with_reference(batch)
            asked.remove("reference")
        if asked:
            batch = trainer.with_outputs(batch, asked)
        return replace(batch, mask_N=given.mask_N)


def make_recipe(
    config: TrainerConfig,
    find_object: Callable[[str], object] = lambda _: None,
    *,
    seed: int = 0,
    teacher: TeacherServer | None = None,
) -> BatchRecipe:
    """The configured functions, each tried on a made-up batch.

    `find_object` gives the object that stands behind a text of the configuration, if one does;
    `seed` is the run's, `teacher` the server of `trainer.reference`.

    Raises:
        ConfigError: there is none of a name, or what one gives is not what it has to be.
    """
    estimator = make_estimator(config, find_object(config.estimator))
    normalisation = make_normalisation(config, find_object(config.normalise))
    correction = make_correction(config, find_object(config.correct))
    loss = make_loss(config, find_object(config.loss))
    needs = {*estimator.needs, *normalisation.needs, *loss.needs, *_find_needs(config)}
    needs |= {*correction.needs} if correction else set()
    return BatchRecipe(
        estimator=estimator,
        normalisation=normalisation,
        correction=correction,
        shapings=_make_shapings(config),
        needs=frozenset(needs),
        minibatches=config.minibatches,
        seed=seed,
        teacher=teacher,
    )


def _make_shapings(config: TrainerConfig) -> dict[str, Shaping]:
    """Those that the configuration asks for; the score itself comes before a penalty."""
    found: dict[str, Shaping] = {}
    if config.reward != RewardScaleConfig():
        found["reward"] = RewardShaping(config.reward)
    if config.cost.part:
        found["cost"] = Constraint(config.cost)
    if config.kl.coef:
        found["kl"] = KlPenalty(config.kl)
    return found


def _find_needs(config: TrainerConfig) -> set[str]:
    """What the configuration needs, whatever its functions do."""
    needs = {"critic"} if config.has_critic else set[str]()
    kl = config.kl
    # Divergences in the loss are computed there; a coefficient that moves measures by samples.
    if kl.coef and (kl.kind != "exact" or kl.where == "reward" or kl.target is not None):
        needs.add("reference")
    if kl.coef and kl.where == "reward" and kl.kind != "exact":
        needs.add("proximal")
    return needs
