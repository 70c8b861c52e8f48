"""The heavy parts of a training run: weights, engine, trainer; made once the plan is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.engine import Engine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.process import prepare_process
from agentrl.envs import EnvServices
from agentrl.orchestration.bind import BoundEnv, JobMaker
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.engines import Begin, local_engine, sglang_start
from agentrl.orchestration.plan import Plan
from agentrl.orchestration.sampling import (
    checked_codec,
    context_length,
    make_collector,
    make_limits,
    with_codec,
)
from agentrl.rollout import Codec, Collector
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
    trainer: Trainer
    jobs: JobMaker
    collector: Collector
    eval_collector: Collector

    async def aclose(self) -> None:
        """Stop the engine and the workers."""
        try:
            await self.engine.aclose()
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
    longest = context_length(config, model_folder)
    make_limits(config, longest)  # its errors come before an engine
    server = None
    if config.engine.samples_with == "sglang":
        server = sglang_start(config, model_folder, codec.tokenizer, longest, logs)
    lora = config.trainer.lora
    model = load_model(model_folder, dtype=lora.dtype if lora.rank else "float32")
    started = None
    if server is None and lora.rank and lora.publish == "merged":
        started = local_engine(model, config)  # a copy, before the model gets adapters
    trainer = Trainer(model, config.trainer, total_steps=config.steps)
    if started is None:
        started = local_engine(model, config) if server is None else server.trained(trainer)
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
