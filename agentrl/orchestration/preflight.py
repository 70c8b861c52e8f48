"""The preflight: everything that can be known wrong in seconds, before any weight loads."""

from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from agentrl.aio import run
from agentrl.config import Config
from agentrl.engine.local.models.files import read_json
from agentrl.engine.local.models.resolve import check_model
from agentrl.envs import EchoAgent, EnvServices, NullAgent, RandomAgent
from agentrl.envs.check import play_episode
from agentrl.envs.declaration import declaration
from agentrl.errors import ConfigError
from agentrl.extras import TRAIN, require
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, BoundEnv, Overrides, bind_envs
from agentrl.orchestration.executors import check_executor
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.observers import check_observers
from agentrl.orchestration.placement.pools import read_placement
from agentrl.orchestration.schedules import make_schedule, try_admission
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.sampler import check_sampler
from agentrl.rollout.selection import share_of
from agentrl.run_dir import check_disk, check_new_run
from agentrl.sandboxes import SandboxOptions, check_backend
from agentrl.tokens.formats import resolve_format
from agentrl.trainer.algorithms.corrections import make_correction
from agentrl.trainer.algorithms.estimators import BUILT_IN, CheckedEstimator, make_estimator
from agentrl.trainer.algorithms.needs import NEEDS
from agentrl.trainer.algorithms.normalisations import make_normalisation
from agentrl.trainer.algorithms.options import split_options
from agentrl.trainer.algorithms.presets import keys_of
from agentrl.trainer.config import CriticConfig, TrainerConfig, check_heads
from agentrl.types import Message, Score

FREE_BYTES_NEEDED = 1 << 30
"""Room that a run must find on the disk of its directory: checkpoints and episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked configuration and the environments that it names."""

    config: RunConfig
    envs: tuple[BoundEnv, ...]
    tool_names: tuple[str, ...]
    objects: Overrides

    def to_json(self) -> dict[str, object]:
        """What `--dry-run` prints."""
        envs = {env.name: env.config.model_dump() for env in self.envs}
        return {"config": self.config.model_dump(), "envs": envs, "tools": list(self.tool_names)}


def make_plan(
    config: RunConfig,
    objects: Overrides = NO_OBJECTS,
    *,
    train: bool = True,
    resume: bool = False,
    scripted: bool = False,
) -> Plan:
    """Check a configuration as far as it goes without loading weights.

    Without `train` the run only evaluates, with `scripted` an agent in the model's place; with
    `resume` its directory is there already.

    Raises:
        ConfigError: in one sentence, the first thing that is wrong.
    """
    envs = bind_envs(config, objects)
    if not scripted:
        require("training" if train else "a model", *TRAIN)
    check_model(config.model)
    if config.trainer.reference_model:
        check_model(config.trainer.reference_model)
    check_observers(config, objects)
    kind = engine_kind(config, objects)
    kind.check_settings(config.engine)
    if not kind.honours_seeds and config.deterministic:
        raise ConfigError(
            f"deterministic: got true with engine {config.engine.name}, which ignores seeds; use "
            "--engine local"
        )
    if config.tool_format is not None:
        resolve_format(objects.get(config.tool_format) or config.tool_format)
    _check_config_combinations(config)
    read_placement(config)
    _check_rank_settings(config)
    check_executor(config, envs)
    if train and not resume:
        check_new_run(Path(config.runs_dir), config.name)
    check_disk(Path(config.runs_dir), FREE_BYTES_NEEDED)
    needs = _check_algorithm(config, objects) if train else {}
    names = [name for env in envs for name in _check_tasks_and_list_tools(env, config, train)]
    if train:  # now that each environment is known to have a task
        for label, needed in needs.items():
            _check_needs_are_given(envs, label, needed, config.seed)
        sampler = objects.get(config.rollout.sampler)
        sources = [env.source() for env in envs]
        check_sampler(config.rollout, sources, seed=config.seed, given=sampler)
        try_admission(config, objects, envs[0])
    tool_names = tuple(dict.fromkeys(names))
    return Plan(config=config, envs=envs, tool_names=tool_names, objects=objects)


def _check_algorithm(config: RunConfig, objects: Overrides) -> dict[str, tuple[str, ...]]:
    """Try the functions of the algorithm, and hold them against the keys; what each needs."""
    trainer = config.trainer
    estimator = make_estimator(trainer, objects.get(trainer.estimator))
    normalisation = make_normalisation(trainer, objects.get(trainer.normalise))
    correction = make_correction(trainer, objects.get(trainer.correct))
    needs = {f.label: f.needs for f in (estimator, normalisation, correction) if f is not None}
    for label, needed in needs.items():
        _check_needs_are_configured(config, label, needed)
    _check_estimator_keys(config, estimator)
    _check_refill_settings(config.rollout, estimator.label, estimator.needs)
    _check_what_the_estimator_reads(trainer, estimator, config.rollout.overlong_buffer)
    needs |= _check_settings_suit_loss(config, objects.get(trainer.loss))
    _check_what_is_made_is_read(config, estimator, {n for each in needs.values() for n in each})
    _check_critic_pretraining(config)
    return needs


def _check_config_combinations(config: RunConfig) -> None:
    rollout = config.rollout
    for key in ("max_context_tokens", "max_episode_tokens"):
        most: int | None = getattr(rollout, key)
        if most and rollout.max_new_tokens > most:
            raise ConfigError(
                f"rollout.max_new_tokens: got {rollout.max_new_tokens}, expected at most "
                f"rollout.{key} ({most})"
            )
    lora = config.trainer.lora
    make_schedule(config)
    if lora.rank and lora.dtype != "float32" and config.trainer.is_apart:
        raise ConfigError(
            f"trainer.lora.dtype: got {lora.dtype} with several ranks or trainer.offload, which "
            "need weights of one number format; use float32 with trainer.precision bfloat16"
        )
    if not lora.rank:
        _refuse_unused_keys("trainer.lora", lora, "without adapters; set trainer.lora.rank too")
    if not config.trainer.kl.coef:
        _refuse_unused_keys(
            "trainer.kl", config.trainer.kl, "without trainer.kl.coef; set that too"
        )
    config.trainer.kl.check()
    if not config.trainer.has_critic:
        todo = f"with trainer.algorithm {config.trainer.algorithm}, which has no critic; set it to"
        _refuse_unused_keys("trainer.critic", config.trainer.critic, f"{todo} ppo or vapo")


_READS_REWARDS_AS_THEY_ARE: Final = {
    "estimator gdpo": "parts of the score alone",
    "estimator distill": "the teacher alone",
    "estimator pass_at_k": "successes alone",
    "estimator maxrl": "rewards from 0 to 1 alone",
    "loss clip_clone": "successes",
}
"""To whom a changed reward says nothing, or something else, and what they read."""


def _refuse_changed_rewards(config: TrainerConfig, label: str, overlong_buffer: float) -> None:
    """Refuse what changes rewards for a function that reads them as they were scored."""
    if (what := _READS_REWARDS_AS_THEY_ARE.get(label)) is None:
        return
    todo = f"with {label}, which reads {what}; choose another {label.partition(' ')[0]}"
    _refuse_unused_keys("trainer.reward", config.reward, todo)
    if config.kl.where == "reward":
        raise ConfigError(f"trainer.kl.where: got reward {todo}, or take loss")
    # To these it is one more part of the score, and an answer that is not right.
    if overlong_buffer and label not in ("estimator gdpo", "loss clip_clone"):
        todo += ", or leave it out"
        raise ConfigError(f"rollout.overlong_buffer: got {overlong_buffer:g} {todo}")


def _check_what_the_estimator_reads(
    config: TrainerConfig, estimator: CheckedEstimator, overlong_buffer: float
) -> None:
    """Refuse a cost, a decay and changes of a reward that nobody reads."""
    if "cost" not in estimator.needs:
        todo = f"with {estimator.label}, which reads no cost; set trainer.algorithm to safe_grpo"
        _refuse_unused_keys("trainer.cost", config.cost, todo)
    _refuse_changed_rewards(config, estimator.label, overlong_buffer)
    decay = config.critic.decay
    is_read = "decay" in estimator.options or estimator.function not in BUILT_IN.values()
    if config.has_critic and not is_read and decay != CriticConfig().decay:
        raise ConfigError(
            f"trainer.critic.decay: got {decay:g} with {estimator.label}, which does not read it; "
            "take estimator gae, or leave it out"
        )


def _refuse_unused_keys(
    where: str,
    section: Config,
    todo: str,
    preset: Mapping[str, object] | None = None,
    read: Set[str] = frozenset(),
) -> None:
    """Refuse a key of a section that nothing reads, if it was given another value.

    `preset` has what the algorithm set, by the whole names of keys; `read` are keys that are read.
    """
    for key in sorted(section.model_fields_set - read):
        default = type(section).model_fields[key].default
        if getattr(section, key) not in (default, (preset or {}).get(f"{where}.{key}")):
            raise ConfigError(f"{where}.{key}: got {getattr(section, key)} {todo}, or leave it out")


def _check_rank_settings(config: RunConfig) -> None:
    trainer = config.trainer
    for key in ("replicate", "sequence_parallel"):
        share: int = getattr(trainer, key)
        if trainer.ranks % share:
            raise ConfigError(
                f"trainer.{key}: got {share}, expected a divisor of trainer.ranks ({trainer.ranks})"
            )
    tasks = config.rollout.tasks_per_step
    if tasks % trainer.minibatches:
        raise ConfigError(
            f"trainer.minibatches: got {trainer.minibatches}, expected a divisor of "
            f"rollout.tasks_per_step ({tasks}), whose groups they share"
        )
    episodes = tasks * config.rollout.group_size
    if trainer.ranks // trainer.sequence_parallel > episodes:
        raise ConfigError(
            f"trainer.ranks: got {trainer.ranks}, but a step has only {episodes} episodes to share "
            "(rollout.tasks_per_step x rollout.group_size); lower it, or raise those"
        )
    shape = Path(config.model).expanduser() / "config.json"
    if trainer.sequence_parallel > 1 and shape.is_file():  # else it is checked once it is there
        model = cast("dict[str, int]", read_json(shape))
        heads = model.get("num_attention_heads", 1)
        groups = model.get("num_key_value_heads") or heads
        check_heads(heads, groups, trainer.sequence_parallel)
    if config.checkpoint.best.startswith("eval/") and not config.eval.every:
        raise ConfigError(
            f"checkpoint.best: got {config.checkpoint.best}, but nothing is evaluated; set "
            "eval.every"
        )
    if trainer.device != "cpu":
        from agentrl.trainer.device import resolve_device  # brings torch, and so takes seconds

        resolve_device(trainer.device, trainer.ranks - 1)


def _check_needs_are_configured(config: RunConfig, label: str, needs: Sequence[str]) -> None:
    """Refuse what a function needs and the configuration does not give."""
    has = {
        "group of 2": config.rollout.group_size > 1,
        "critic": config.trainer.has_critic,
        "reference": config.trainer.has_reference or bool(config.trainer.reference),
        "teacher": config.trainer.reference not in ("", config.model),
        "greedy member": config.rollout.greedy_member,
        "cost": bool(config.trainer.cost.part),
    }
    for need in needs:
        if not has.get(need, True):
            raise ConfigError(f"{label} needs a {need}: {NEEDS[need]}")


def _check_refill_settings(rollout: RolloutConfig, label: str, needs: Sequence[str]) -> None:
    """Refuse keys that decide what of a group is trained on and could not do what they say."""
    compares = {"group of 2", "greedy member"} & {*needs} and not {"critic", "reference"} & {*needs}
    if rollout.refill > 1 and not compares and rollout.admission == "settings":
        raise ConfigError(
            f"rollout.refill: got {rollout.refill:g} with {label}, which learns from a group of "
            "equal rewards too; leave it out, or take an estimator such as grpo"
        )
    kept = share_of(rollout.group_size, rollout.filter_share)
    if rollout.filter != "none" and kept < 2:
        raise ConfigError(
            f"rollout.filter_share: got {rollout.filter_share:g} with rollout.group_size "
            f"{rollout.group_size}, which keeps {kept} of each group, expected 2 at least; raise "
            "one of both"
        )
    default = RolloutConfig()
    if rollout.filter == "none" and rollout.filter_share != default.filter_share:
        raise ConfigError(
            f"rollout.filter_share: got {rollout.filter_share:g} without rollout.filter; set that "
            "too, or leave it out"
        )
    if not rollout.overlong_buffer and rollout.overlong_penalty != default.overlong_penalty:
        raise ConfigError(
            f"rollout.overlong_penalty: got {rollout.overlong_penalty:g} without "
            "rollout.overlong_buffer; set that too, or leave it out"
        )


def _check_settings_suit_loss(config: RunConfig, given: object) -> dict[str, tuple[str, ...]]:
    trainer = config.trainer
    if trainer.loss == TrainerConfig.model_fields["loss"].default:
        return {}
    from agentrl.trainer.algorithms.losses import make_loss  # brings torch

    loss = make_loss(trainer, given)
    _check_needs_are_configured(config, loss.label, loss.needs)
    options = trainer.loss.removeprefix(split_options(trainer.loss)[0])
    todo = f"with {loss.label}{options}, which does not read it; set the loss's option"
    preset = keys_of(trainer.algorithm)
    _refuse_unused_keys("trainer.clip", trainer.clip, todo, preset, read=loss.clip_keys)
    _refuse_changed_rewards(trainer, loss.label, config.rollout.overlong_buffer)
    return {loss.label: loss.needs}


def _check_critic_pretraining(config: RunConfig) -> None:
    """Refuse a run that is over before the policy learns."""
    steps = config.trainer.critic.pretrain
    if config.trainer.has_critic and steps >= config.steps:
        raise ConfigError(
            f"trainer.critic.pretrain: got {steps} of {config.steps} steps in which the critic "
            "alone learns; lower it, or raise steps"
        )


def _check_what_is_made_is_read(
    config: RunConfig, estimator: CheckedEstimator, needs: Set[str]
) -> None:
    """Refuse a model that would be loaded, learned or played with, and never asked."""
    trainer = config.trainer
    if trainer.reference and not trainer.kl.coef and not needs & {"reference", "teacher"}:
        raise ConfigError(
            f"trainer.reference: got {trainer.reference}, but nothing reads it; set "
            "trainer.algorithm to distill, or trainer.kl.coef above 0"
        )
    if estimator.function not in BUILT_IN.values():
        return  # one's own may read what it does not declare
    if trainer.has_critic and "critic" not in needs:
        raise ConfigError(
            f"trainer.algorithm: got {trainer.algorithm}, which learns a critic, with "
            f"{estimator.label}, which does not read it; take estimator gae, or another algorithm"
        )
    if config.rollout.greedy_member and "greedy member" not in needs:
        raise ConfigError(
            f"rollout.greedy_member: got true with {estimator.label}, which reads no greedy "
            "member; take estimator remax, or set it to false"
        )


def _check_needs_are_given(
    envs: Sequence[BoundEnv], label: str, needs: Sequence[str], seed: int
) -> None:
    """Refuse a need that no environment meets, as far as that can be told before a policy plays."""
    for need in ("state keys", "score parts"):
        if need in needs and all(_lacks_need(env, need, seed) for env in envs):
            names = ", ".join(env.name for env in envs)
            raise ConfigError(f"{label} needs {need}, but env {names} gives none: {NEEDS[need]}")


def _lacks_need(env: BoundEnv, need: str, seed: int) -> bool:
    """True of keys if there is no hook for them, of parts if no agent's episode has any.

    Without an expert agents that know nothing prove nothing.
    """
    expert = env.expert
    if need == "state keys" or expert is None:
        return need == "state keys" and "state_key" not in declaration(env.env_class).hooks
    simple = (NullAgent(), EchoAgent(), RandomAgent(seed, env.prototype.tool_schemas))
    task = env.task(0, "train", seed)
    with closing(EnvServices()) as services:
        for agent in (expert, *simple):
            played = run(play_episode(env.make(services, None), agent, task, seed))
            if played.parts or not isinstance(played.outcome, Score):
                return False
    return True


def _check_estimator_keys(config: RunConfig, estimator: CheckedEstimator) -> None:
    """Refuse what the estimator does not read, or could never compute."""
    if not config.trainer.scale_by_std and "scale_by_std" not in estimator.options:
        raise ConfigError(
            f"trainer.scale_by_std: got false with {estimator.label}, which has no such option; "
            "leave it out"
        )
    rollout, least = config.rollout, estimator.least_members
    kept = share_of(rollout.group_size, rollout.filter_share)
    size, filtered = rollout.group_size, rollout.filter != "none"
    if (kept if filtered else size) < least:
        what = f", of which rollout.filter keeps {kept}" if filtered else ""
        raise ConfigError(
            f"{estimator.label} compares teams within groups of {least} at least, but "
            f"rollout.group_size is {size}{what}, so every advantage would be 0; raise that, or "
            "lower k"
        )


def _check_tasks_and_list_tools(env: BoundEnv, config: RunConfig, train: bool) -> list[str]:
    """Make one task of each split that the run uses; the names of the environment's tools."""
    sandbox: object = getattr(env.config, "sandbox", None)
    if isinstance(sandbox, SandboxOptions):
        check_backend(sandbox)
    for split in used_splits(config, train):
        task = env.task(0, split, config.seed)
        if not task.messages():
            raise ConfigError(f"env {env.name}: task 0 of split {split} has an empty prompt")
        _check_messages_hold_text(env.name, task.messages())
    return [schema.name for schema in env.prototype.tool_schemas]


def used_splits(config: RunConfig, train: bool) -> list[str]:
    """The splits that a run takes tasks from."""
    splits = {"train"} if train else {config.eval.split}
    return sorted(splits | {config.eval.split} if config.eval.every else splits)


def _check_messages_hold_text(name: str, messages: tuple[Message, ...]) -> None:
    for message in messages:
        content = cast("object", message.content)  # a task file may hold anything
        if not isinstance(content, str):
            raise ConfigError(
                f"env {name}: a message's content is of type {type(content).__name__}, expected "
                "text; images and other parts are not supported"
            )


MODEL_PRESETS: Mapping[str, Mapping[str, object]] = {
    "tiny": {
        "steps": 50,
        "threads": 1,
        "trainer.lr": 8e-4,
        "trainer.schedule": "linear",
        "trainer.warmup_steps": 3,
        "rollout.tasks_per_step": 32,
        "rollout.max_new_tokens": 64,
        "rollout.max_context_tokens": 512,
        "engine.slots": 256,
        "warm_start.updates": 400,
        "warm_start.batch": 16,
        "warm_start.lr": 3e-3,
        "warm_start.smoothing": 0.04,
    },
    "smollm2-135m": {
        "trainer.lr": 1e-5,
        "trainer.token_budget": 2048,
    },
}
"""Defaults that depend on the model; they lie under the file and the flags."""

ENV_PRESETS: Mapping[str, Mapping[str, object]] = {
    "code_sandbox": {"rollout.max_new_tokens": 256, "rollout.max_context_tokens": 1024},
    "swe_sandbox": {"rollout.max_new_tokens": 512, "rollout.max_context_tokens": 2048},
}
"""What an environment needs where a model's preset gives less."""

PAIR_PRESETS: Mapping[tuple[str, str], Mapping[str, object]] = {
    # Its policy soon succeeds nearly always. Then groups learn from the rare failures alone, whose
    # gradients are large and few; each success says the same, a little, in every step. Without a
    # baseline a group need not be large, and steps of few tasks forget how to copy the others.
    ("tiny", "calculator"): {
        "steps": 40,
        "trainer.algorithm": "reinforce",
        "trainer.beta2": 0.99,
        "trainer.lr": 6e-4,
        "rollout.tasks_per_step": 64,
        "rollout.group_size": 2,
        # What the warm start copies wrong is wrong in all episodes of a group, and stays so.
        # Smaller batches copy a few in a hundred wrongly to the end, and some seeds take longer.
        "warm_start.updates": 1000,
        "warm_start.passes": 4,  # to play a demonstration takes half as long as to train on it
    },
    ("tiny", "long_haul"): {
        "steps": 40,
        "rollout.tasks_per_step": 16,
        "rollout.max_new_tokens": 16,
        "rollout.max_context_tokens": 144,  # the pages have 3.2 times that
        "warm_start.updates": 300,
        "warm_start.batch": 8,
        "warm_start.smoothing": 0.0,  # demonstrations may lose the key: enough to improve
    },
    # A game forgives a few wrong tokens, so its warm start has to leave more of them.
    ("tiny", "number_guess"): {
        "steps": 110,
        "warm_start.updates": 500,
        "warm_start.batch": 32,
        "warm_start.lr": 4e-3,
        "warm_start.smoothing": 0.08,
    },
    ("tiny", "swe_sandbox"): {
        "rollout.tasks_per_step": 2,
        "rollout.group_size": 4,
        "warm_start.updates": 4,
        "warm_start.batch": 8,
    },
    ("smollm2-135m", "swe_sandbox"): {
        "warm_start.updates": 30,
        "warm_start.batch": 8,
        "rollout.tasks_per_step": 4,
        "rollout.group_size": 4,
        "rollout.max_turns": 12,
        "rollout.max_context_tokens": 4096,
        "trainer.token_budget": 4096,
    },
}
"""By model and environment: what lets a step end within minutes on a laptop."""
