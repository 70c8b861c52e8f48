"""The gate before the first update: policy and behavior must be the same distribution."""

from agentrl.errors import RunError
from agentrl.trainer.config import RatioBandConfig
from agentrl.trainer.stats import RatioStats


def check_first_update(ratios: RatioStats, band: RatioBandConfig, num_trained: int) -> None:
    """Raise RunError with a report unless the ratios lie within the band."""
    if ratios.deviation_mean <= band.mean and ratios.deviation_max <= band.max:
        return
    raise RunError(
        f"before the first update the importance ratios of {num_trained} tokens have mean "
        f"{ratios.mean:.4g}, mean |ratio - 1| {ratios.deviation_mean:.4g} (at most {band.mean:g} "
        f"expected) and largest |ratio - 1| {ratios.deviation_max:.4g} (at most {band.max:g}); the "
        f"logprob gap is {ratios.gap_mean:.4g} (mean) and {ratios.gap_max:.4g} (max) nats; engine "
        "and trainer do not compute the same distribution, so check weights, temperature and dtype "
        "of the engine, or widen trainer.ratio_band if its precision explains this"
    )
