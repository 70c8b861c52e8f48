"""The heavy parts of a training run: weights, engine, trainer; made once the plan is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.engine import Engine
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.process import prepare_process
from agentrl.envs import EnvServices
from agentrl.errors import ConfigError
from agentrl.orchestration.bind import BoundEnv, JobMaker
from agentrl.orchestration.config import RunConfig
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


def build_parts(plan: Plan, model_folder: Path) -> Parts:
    """Load the model and make engine and trainer around it.

    Raises:
        ConfigError: the chat template cannot be used, an episode's budget is larger than the
            context, or the engine cannot be deterministic.
    """
    config = plan.config
    prepare_process(threads=config.threads, deterministic=config.deterministic, seed=config.seed)
    codec = checked_codec(plan, model_folder)
    model = load_model(model_folder, dtype="float32")
    make_limits(config, context_length(config, model_folder))  # its errors come before an engine
    trainer = Trainer(model, config.trainer, total_steps=config.steps)
    engine = LocalEngine(model, config.engine)
    if config.deterministic and not engine.honours_seeds:
        raise ConfigError("deterministic: got true, but this engine ignores seeds; use another one")
    sampling = with_codec(plan, codec, engine)
    return Parts(
        config=config,
        envs=plan.envs,
        tool_names=plan.tool_names,
        codec=codec,
        services=sampling.services,
        engine=engine,
        trainer=trainer,
        jobs=sampling.jobs,
        collector=make_collector(engine, codec, config, config.rollout.temperature),
        eval_collector=make_collector(engine, codec, config, config.eval.temperature),
    )
