"""The heavy parts of a training run: weights, engine, trainer; made once the plan is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl.engine import Engine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.process import prepare_process
from agentrl.envs import EnvServices
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.engines import local_engine
from agentrl.orchestration.env_mix import BoundEnv, JobMaker
from agentrl.orchestration.kinds import EngineSetup, Starting, engine_kind
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.sampling import (
    checked_codec,
    context_length,
    make_collector,
    make_limits,
    with_codec,
)
from agentrl.orchestration.started import Begin, Started
from agentrl.rollout import Codec, Collector
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.device import resolve_device
from agentrl.trainer.executor import TrainerGroup
from agentrl.trainer.lora import add_adapters
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a controller works with."""

    config: RunConfig
    envs: Sequence[BoundEnv]
    tool_names: Sequence[str]
    codec: Codec
    services: EnvServices
    engine: Engine
    begin: Begin
    """To be awaited before the engine is used."""
    trainer: Trainer | TrainerGroup
    jobs: JobMaker
    collector: Collector
    eval_collector: Collector

    async def aclose(self) -> None:
        """Stop the engine, the trainer and the workers."""
        try:
            await self.engine.aclose()
        finally:
            try:
                self.trainer.close()
            finally:
                self.services.close()


def build_parts(plan: Plan, model_folder: Path, logs: Path | None = None) -> Parts:
    """Load the model and make engine and trainer around it.

    Args:
        plan: what to build.
        model_folder: the model.
        logs: folder for the log of a server; by default one in the cache.

    Raises:
        ConfigError: the chat template cannot be used, or an episode's budget is larger than the
            context.
    """
    config = plan.config
    prepare_process(threads=config.threads, deterministic=config.deterministic, seed=config.seed)
    codec = checked_codec(plan, model_folder)
    longest = context_length(config, model_folder, plan.objects)
    make_limits(config, longest)  # its errors come before an engine
    kind, starting = engine_kind(config, plan.objects), None
    if not kind.in_process:
        setup = EngineSetup(
            config=config,
            folder=model_folder,
            codec=codec,
            envs=plan.envs,
            context_length=longest,
            logs=logs,
            is_trained=True,
        )
        starting = Starting.of(kind, setup)
    num_ids = None if kind.samples_all_rows else codec.tokenizer.vocab_size
    trainer, started = _trained(plan, model_folder, starting, longest, num_ids)
    engine = started.engine
    sampling = with_codec(plan, codec, started)
    return Parts(
        config=config,
        envs=plan.envs,
        tool_names=plan.tool_names,
        codec=codec,
        services=sampling.services,
        engine=engine,
        begin=started.begin,
        trainer=trainer,
        jobs=sampling.jobs,
        collector=make_collector(engine, codec, config, config.rollout.temperature),
        eval_collector=make_collector(engine, codec, config, config.eval.temperature),
    )


def _trained(
    plan: Plan,
    folder: Path,
    starting: Starting | None,
    longest: int,
    num_ids: int | None,
) -> tuple[Trainer | TrainerGroup, Started]:
    """The trainer, and the engine that samples with its weights."""
    config = plan.config
    settings, lora = config.trainer, config.trainer.lora
    dtype = lora.dtype if lora.rank else "float32"
    if settings.is_apart:
        group = TrainerGroup(
            folder,
            settings,
            total_steps=config.steps,
            longest=longest,
            threads=config.threads,
            deterministic=config.deterministic,
            seed=config.seed,
            num_ids=num_ids,
        )
        if starting is not None:
            return group, starting.started(group)
        model = load_model(folder, dtype=dtype, num_ids=num_ids)
        if lora.rank and lora.publish == "adapter":
            add_adapters(model, lora)
        return group, local_engine(model, config)
    ranks = Ranks(device=resolve_device(settings.device))
    model = load_model(folder, dtype=dtype, device=str(ranks.device), num_ids=num_ids)
    make_trainer = partial(
        Trainer,
        config=settings,
        total_steps=config.steps,
        longest=longest,
        ranks=ranks,
        loss=make_loss(settings, plan.objects.get(settings.loss)),
    )
    if starting is None and lora.rank and lora.publish == "merged":
        # The engine's copy is made before the model gets adapters.
        started = local_engine(model, config)
        return make_trainer(model), started
    trainer = make_trainer(model)
    return trainer, starting.started(trainer) if starting else local_engine(model, config)
