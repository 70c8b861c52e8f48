"""What is done to a batch between the episodes and the update.

values ─▶ advantages ─▶ weights ─▶ Trainer.update
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentrl.trainer.algorithms.estimators import CheckedEstimator, make_estimator
from agentrl.trainer.algorithms.normalisations import CheckedNormalisation, make_normalisation
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.protocol import Trainer
from agentrl.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecipe:
    """The checked functions of a run, and the order in which they are called."""

    estimator: CheckedEstimator
    normalisation: CheckedNormalisation
    has_critic: bool

    def prepare(self, batch: Batch, trainer: Trainer) -> Batch:
        """The batch as `Trainer.update` takes it; raises RunError for what a function got wrong."""
        if self.has_critic:
            batch = trainer.with_values(batch)
        batch = replace(batch, advantages_N=self.estimator(batch))
        return replace(batch, weights_N=self.normalisation(batch))


def make_recipe(
    config: TrainerConfig, find_object: Callable[[str], object] = lambda _: None
) -> BatchRecipe:
    """The configured functions, each tried on a made-up batch.

    `find_object` gives the object that stands behind a text of the configuration, if one does.

    Raises:
        ConfigError: there is none of a name, or what one gives is not what it has to be.
    """
    return BatchRecipe(
        estimator=make_estimator(config, find_object(config.estimator)),
        normalisation=make_normalisation(config, find_object(config.normalise)),
        has_critic=config.has_critic,
    )
