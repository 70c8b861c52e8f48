"""What is done to a batch between the episodes and the update.

passes of the models ─▶ correction ─▶ shaping of rewards ─▶ advantages ─▶ weights ─▶ Trainer.update

A pass (the critic's values, the reference's logprobs, the policy's own) is made where something
needs it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.corrections import (
    CheckedCorrection,
    leave_out_rejected,
    make_correction,
)
from agentrl.trainer.algorithms.estimators import CheckedEstimator, make_estimator
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.minibatches import deal_groups, split_minibatches
from agentrl.trainer.algorithms.normalisations import CheckedNormalisation, make_normalisation
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.protocol import Trainer
from agentrl.types import Batch
from agentrl.types.identity import derive_seed

Step = Callable[[Batch], Batch]
"""Gives the batch with something of it replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecipe:
    """The checked functions of a run, and the order in which they are called."""

    estimator: CheckedEstimator
    normalisation: CheckedNormalisation
    correction: CheckedCorrection | None = None
    """Takes tokens out of the mask, or writes `factors_N`."""
    shapings: Sequence[Step] = ()
    """Each replaces rewards."""
    needs: frozenset[str]
    """What the functions and the loss need, all together."""
    minibatches: int = 1
    seed: int = 0
    """Decides, with the trainer's step, which groups share a mini-batch."""

    def prepare(self, batch: Batch, trainer: Trainer) -> Batch:
        """The batch as `Trainer.update` takes it; raises RunError for what a function got wrong."""
        batch = self._make_passes(batch, trainer)
        if self.correction is not None:
            batch = self.correction(batch)
        for shape in self.shapings:
            batch = shape(batch)
        batch = replace(batch, advantages_N=self.estimator(leave_out_rejected(batch)))
        if self.minibatches > 1:
            seed = derive_seed(self.seed, "minibatches", trainer.step)
            batch = replace(batch, minibatch_E=deal_groups(batch, self.minibatches, seed))
        return replace(batch, weights_N=self._weigh(batch))

    def _weigh(self, batch: Batch) -> NDArray[np.float32]:
        """[N] What each token counts in its mini-batch, normalised as a batch of its own."""
        weights_N = np.zeros(batch.num_tokens, dtype=np.float32)
        for part, chosen_N in split_minibatches(batch):
            weights_N[chosen_N] = self.normalisation(part)
        return weights_N if batch.factors_N is None else weights_N * batch.factors_N

    def _make_passes(self, batch: Batch, trainer: Trainer) -> Batch:
        if "critic" in self.needs:
            batch = trainer.with_values(batch)
        if "reference" in self.needs:
            batch = trainer.with_reference(batch)
        if "proximal" in self.needs:
            batch = trainer.with_proximal(batch)
        return batch


def make_recipe(
    config: TrainerConfig,
    find_object: Callable[[str], object] = lambda _: None,
    *,
    seed: int = 0,
) -> BatchRecipe:
    """The configured functions, each tried on a made-up batch.

    `find_object` gives the object that stands behind a text of the configuration, if one does;
    `seed` is the run's.

    Raises:
        ConfigError: there is none of a name, or what one gives is not what it has to be.
    """
    estimator = make_estimator(config, find_object(config.estimator))
    normalisation = make_normalisation(config, find_object(config.normalise))
    correction = make_correction(config, find_object(config.correct))
    loss = make_loss(config, find_object(config.loss))
    needs = {*estimator.needs, *normalisation.needs, *loss.needs}
    needs |= {*correction.needs} if correction else set()
    needs |= {"critic"} if config.has_critic else set()
    needs |= {"reference"} if config.kl.coef else set()
    return BatchRecipe(
        estimator=estimator,
        normalisation=normalisation,
        correction=correction,
        needs=frozenset(needs),
        minibatches=config.minibatches,
        seed=seed,
    )
