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
    _check_weights_of_engine(config)
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


def _check_weights_of_engine(config: RunConfig) -> None:
    """Refuse weights shared with a trainer that would change them at the wrong time."""
    lora, engine, staleness = config.trainer.lora, config.engine, config.async_.staleness
    if engine.share_weights is True and lora.rank and lora.publish == "merged":
        raise ConfigError(
            "engine.share_weights: got true with trainer.lora.publish merged, whose weights are "
            "the engine's alone; set trainer.lora.publish to adapter"
        )
    ways = {
        "deterministic": (config.deterministic, "which episode ends first is chance"),
        "engine.share_device": (engine.share_device, "engine and trainer take turns there"),
        "engine.share_weights true": (
            engine.share_weights is True,
            "the engine samples while the trainer writes, so it needs a copy",
        ),
    }
    for key, (is_set, why) in ways.items():
        if staleness and is_set:
            raise ConfigError(
                f"async.staleness: got {staleness} with {key}: {why}; take one of them back"
            )
