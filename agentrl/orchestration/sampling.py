"""Engine and collector without a trainer: for evaluation and for rollouts alone."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from agentrl.engine import Engine
from agentrl.engine.local.models.files import read_json
from agentrl.envs import EnvServices
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, JobMaker, Overrides
from agentrl.orchestration.evaluate import EvalResult, evaluate
from agentrl.orchestration.kinds import EngineSetup, Starting, engine_kind
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.started import Begin, Started, nothing
from agentrl.rollout import Codec, Collected, Collector, CollectSettings, EpisodeLimits
from agentrl.tokens import Tokenizer, ToolFormat
from agentrl.tokens.time_limit import limited
from agentrl.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParts:
    """What it takes to play episodes."""

    codec: Codec
    services: EnvServices
    engine: Engine
    begin: Begin
    """To be awaited before the engine is used."""
    jobs: JobMaker

    async def aclose(self) -> None:
        """Stop the engine and the workers."""
        try:
            await self.engine.aclose()
        finally:
            self.services.close()


def sampling_parts(
    plan: Plan, model_folder: Path, engine: Callable[[Codec], Engine] | None = None
) -> SamplingParts:
    """Load the model for sampling; `engine` puts another engine in the local one's place."""
    # torch, only now: scripted agents do without
    from agentrl.engine.local.models.load import load_model
    from agentrl.engine.local.process import prepare_process
    from agentrl.orchestration.engines import local_engine

    config = plan.config
    prepare_process(threads=config.threads, deterministic=config.deterministic, seed=config.seed)
    codec = checked_codec(plan, model_folder)
    longest = context_length(config, model_folder, plan.objects)
    make_limits(config, longest)
    if engine is not None:
        started = Started(engine=engine(codec), begin=nothing)
    elif not (kind := engine_kind(config, plan.objects)).in_process:
        setup = EngineSetup(
            config=config,
            folder=model_folder,
            codec=codec,
            envs=plan.envs,
            context_length=longest,
        )
        started = Starting.of(kind, setup).started(None)
    else:
        num_ids = codec.tokenizer.vocab_size
        model = load_model(model_folder, dtype=config.engine.dtype, num_ids=num_ids)
        started = local_engine(model, config)
    return with_codec(plan, codec, started)


def checked_codec(plan: Plan, model_folder: Path) -> Codec:
    """The model's codec, its chat template tried with the tools of every environment.

    Raises:
        ConfigError: the template cannot be used, or the tokenizer is another model's; no weight has
            been loaded yet.
    """
    rollout = plan.config.rollout
    tokenizer = Tokenizer.load(model_folder)
    size = _config(model_folder).get("vocab_size")
    if isinstance(size, int) and tokenizer.vocab_size > size:
        raise ConfigError(
            f"{model_folder}: its tokenizer.json has {tokenizer.vocab_size} ids, but the model "
            f"knows {size}: it is another model's; put the model's own files there"
        )
    given = plan.objects.get(plan.config.tool_format)
    codec = Codec(
        tokenizer,
        tool_format=cast("type[ToolFormat] | None", given) or plan.config.tool_format,
        reasoning=rollout.reasoning,
        results=rollout.tool_results,
    )
    with limited():
        for env in plan.envs:
            codec.renderer(env.prototype.tool_schemas)
    return codec


def context_length(config: RunConfig, model_folder: Path, objects: Overrides = NO_OBJECTS) -> int:
    """Most tokens of an episode that model and engine allow, from the model's config."""
    settings = _config(model_folder)
    longest = settings.get("max_position_embeddings")
    own = longest if isinstance(longest, int) else config.engine.context_length or 2**20
    own = min(config.engine.context_length or own, own)
    return own - engine_kind(config, objects).reserved_tokens


def _config(model_folder: Path) -> dict[str, object]:
    return cast("dict[str, object]", read_json(model_folder / "config.json"))


def with_codec(plan: Plan, codec: Codec, started: Started) -> SamplingParts:
    """The parts around an engine that is already there."""
    services = EnvServices()
    jobs = JobMaker(plan.envs, services=services, tokenizer=codec.tokenizer, seed=plan.config.seed)
    return SamplingParts(
        codec=codec, services=services, engine=started.engine, begin=started.begin, jobs=jobs
    )


def make_limits(config: RunConfig, context_length: int) -> EpisodeLimits:
    """The budgets of an episode; with `deterministic` no clock ends one.

    Raises:
        ConfigError: the budget is larger than the context, or the context policy would act too
            late.
    """
    rollout = config.rollout
    asked = rollout.max_context_tokens or context_length
    if asked > context_length:
        raise ConfigError(
            f"rollout.max_context_tokens: got {asked}, expected at most {context_length}, "
            "the context length of model and engine"
        )
    if config.context.at is not None and config.context.at >= asked:
        raise ConfigError(
            f"context.at: got {config.context.at}, expected less than the context's {asked} tokens "
            "(rollout.max_context_tokens)"
        )
    return EpisodeLimits(
        max_new_tokens=rollout.max_new_tokens,
        max_context_tokens=asked,
        max_episode_tokens=rollout.max_episode_tokens,
        wall_s=None if config.deterministic else rollout.wall_s,
        setup_s=rollout.setup_s,
    )


def make_collector(
    engine: Engine, codec: Codec, config: RunConfig, temperature: float
) -> Collector:
    """A collector with the run's settings."""
    rollout = config.rollout
    settings = CollectSettings(
        limits=make_limits(config, engine.context_length),
        temperature=temperature,
        concurrency=rollout.concurrency,
        attempts=rollout.attempts,
        max_invalid_share=rollout.max_invalid_share,
        fixed_order=config.deterministic,
    )
    return Collector(engine=engine, codec=codec, settings=settings)


async def evaluate_once(
    plan: Plan,
    parts: SamplingParts,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> tuple[EvalResult, Collected]:
    """One evaluation as `config.eval` says."""
    config = plan.config
    collector = make_collector(parts.engine, parts.codec, config, config.eval.temperature)
    return await evaluate(
        collector=collector,
        jobs=parts.jobs,
        envs=plan.envs,
        config=config.eval,
        seed=config.seed,
        step=0,
        on_episode=on_episode,
    )
