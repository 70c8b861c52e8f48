"""The schedule of a run and its admission policy, as its configuration says."""

from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import BoundEnv, Overrides
from agentrl.rollout.admission import CheckedAdmission, check_admission
from agentrl.schedule import Schedule


def make_schedule(config: RunConfig) -> Schedule:
    """The numbers that the run's scheduler goes by.

    Raises:
        ConfigError: sampling cannot run ahead of training as it is asked to.
    """
    ahead, rollout, trainer = config.async_, config.rollout, config.trainer
    _check_weights_of_engine(config)
    _check_what_is_begun_and_given_up(config)
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


def make_admission(config: RunConfig, objects: Overrides) -> CheckedAdmission:
    """The policy that says which groups are trained on; raises ConfigError if there is none."""
    return CheckedAdmission(
        config.rollout,
        objects.get(config.rollout.admission),
        late=config.async_.late,
        deterministic=config.deterministic,
    )


def try_admission(config: RunConfig, objects: Overrides, env: BoundEnv) -> None:
    """Raise ConfigError for a policy that could not answer, or answers wrongly at once."""
    policy, members = make_admission(config, objects), max(2, config.rollout.group_size)
    task = env.task(0, "train", config.seed)
    check_admission(policy, task=task, env=env.name, members=members)


def _check_what_is_begun_and_given_up(config: RunConfig) -> None:
    """Refuse settings of admission that could not do what they say."""
    rollout = config.rollout
    for key in ("refill", "overprovision"):
        multiple: float = getattr(rollout, key)
        if 1 < multiple < 1 + 1 / rollout.tasks_per_step:
            raise ConfigError(
                f"rollout.{key}: got {multiple:g}, which adds no group to rollout.tasks_per_step "
                f"({rollout.tasks_per_step}); give more, or leave it out"
            )
    if 0 < rollout.stragglers * rollout.group_size < 1:
        raise ConfigError(
            f"rollout.stragglers: got {rollout.stragglers:g}, which is no member of "
            f"rollout.group_size ({rollout.group_size}); give more, or leave it out"
        )
    if rollout.overprovision > 1 and config.async_.late != "drop":
        raise ConfigError(
            f"rollout.overprovision: got {rollout.overprovision:g} with async.late "
            f"{config.async_.late}, which gives no group up; set async.late to drop"
        )
    if config.deterministic and (rollout.overprovision > 1 or rollout.stragglers):
        key = "overprovision" if rollout.overprovision > 1 else "stragglers"
        raise ConfigError(
            f"rollout.{key}: got {getattr(rollout, key):g} with deterministic: which episode ends "
            "first is chance; take one of them back"
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
