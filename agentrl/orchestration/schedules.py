"""The schedule of a run, as its configuration says."""

from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.schedule import Schedule


def make_schedule(config: RunConfig) -> Schedule:
    """The numbers that the run's scheduler goes by.

    Raises:
        ConfigError: sampling cannot run ahead of training as it is asked to.
    """
    ahead, rollout, trainer = config.async_, config.rollout, config.trainer
    if ahead.staleness:
        got = f"async.staleness: got {ahead.staleness}"
        if config.deterministic:
            raise ConfigError(
                f"{got} with deterministic: which episode ends first is never the same; take one "
                "of them away"
            )
        if config.engine.share_device:
            raise ConfigError(
                f"{got} with engine.share_device: there engine and trainer take turns; give each a "
                "device of its own, or take async.staleness 0"
            )
        if config.engine.share_weights is True:
            raise ConfigError(
                f"{got} with engine.share_weights true: the engine samples while the trainer "
                "writes, so it needs a copy; leave it at auto"
            )
    return Schedule(
        groups_per_step=rollout.tasks_per_step,
        members=rollout.group_size + rollout.greedy_member,
        steps=config.steps,
        attempts=rollout.attempts,
        concurrency=None if config.deterministic else rollout.concurrency,
        staleness=ahead.staleness,
        updates=trainer.epochs * trainer.minibatches,
        late=ahead.late,
        partial=ahead.partial,
    )
