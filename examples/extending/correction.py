import numpy as np

from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.rollout_correction import rejecting, token_ratios
from agentrl.types import Batch


@needs("proximal")
def surprises(batch: Batch, *, least: float = 1e-3) -> Batch:
    """Rejects tokens that the trainer would nearly never have sampled."""
    assert batch.proximal_N is not None
    return rejecting(batch, (token_ratios(batch) < 0.5) & (np.exp(batch.proximal_N) < least))
