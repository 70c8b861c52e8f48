"""The parts that a run works with, and the order in which they are built.

    codec, budgets ─▶ a server starts ─▶ weights, trainer ─▶ engine ─▶ collectors ─▶ engine ready
        seconds          (meanwhile)       what takes memory

What a folder's files say is checked before anything starts. Training, supervised training and
evaluation are loops over these parts; `async with aclosing(...)` ends them.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentrl.engine import Engine
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.protocol import capacity_tokens
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import BoundEnv, JobMaker
from agentrl.orchestration.executors import make_executor, place_roles, start_players
from agentrl.orchestration.kinds import EngineSetup, engine_kind, start_engine
from agentrl.orchestration.model_files import checked_codec, context_length, make_limits
from agentrl.orchestration.preflight import Plan
from agentrl.rollout import Codec, Collector, CollectSettings, RolloutConfig
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.player_pool import PlayerPool
from agentrl.trainer.protocol import Trainer
from agentrl.types import Agent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ENDLESS: Final = 1 << 20
"""Tokens: a scripted agent's turns and episodes are as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loops work with; the engine is ready."""

    config: RunConfig
    envs: Sequence[BoundEnv]
    codec: Codec
    services: EnvServices
    engine: Engine
    learner: Trainer | None = None
    """None: nothing is trained."""
    players: PlayerPool | None = None
    """None: episodes are played in this process."""
    jobs: JobMaker
    collector: Collector
    eval_collector: Collector

    @property
    def isolation(self) -> list[tuple[str, ...]]:
        """The backends of the sandboxes that were used, and what each held."""
        return self.services.isolation + (self.players.isolation if self.players else [])

    @property
    def places(self) -> list[str]:
        """Which process each part of the run is, and where; none if this one is all."""
        ranks: list[str] = getattr(self.learner, "places", [])
        players = self.players.places if self.players is not None else []
        return [f"driver and engine: process {os.getpid()}", *ranks, *players] if players else []

    @property
    def trainer(self) -> Trainer:
        """What trains the weights that the engine samples with."""
        assert self.learner is not None, "these parts were built with train=False"
        return self.learner

    async def aclose(self) -> None:
        """Stop the engine, then the trainer, then the workers; each although another failed."""
        async with AsyncExitStack() as stack:  # the last one first
            stack.callback(self.services.close)
            if self.players is not None:
                stack.push_async_callback(self.players.aclose)
            if self.learner is not None:
                stack.callback(self.learner.close)
            stack.push_async_callback(self.engine.aclose)


async def build_parts(
    plan: Plan, folder: Path, *, train: bool = True, logs: Path | None = None
) -> Parts:
    """Load the model of `folder`, and make an engine and a trainer around it.

    Args:
        plan: what to build.
        folder: the model.
        train: whether weights are trained; otherwise there is no trainer.
        logs: folder for the log of a server; by default one in the cache.

    Raises:
        ConfigError: the chat template cannot be used, or an episode's budget is larger than the
            context.
    """
    from agentrl.engine.local.process import prepare_process  # torch, only now

    config = plan.config
    prepare_process(threads=config.threads, deterministic=config.deterministic, seed=config.seed)
    codec = checked_codec(plan, folder)
    longest = context_length(config, folder, plan.objects)
    make_limits(config, longest)
    kind = engine_kind(config, plan.objects)
    setup = EngineSetup(
        config=config,
        folder=folder,
        codec=codec,
        envs=plan.envs,
        context_length=longest,
        logs=logs,
        is_trained=train,
    )
    async with AsyncExitStack() as undo:
        players = await start_players(config, codec, plan.envs)
        if players is not None:
            undo.push_async_callback(players.aclose)
        server: Engine | None = None
        if not kind.in_process:  # it takes longest, so the weights load here meanwhile
            server = start_engine(kind, setup)
            undo.push_async_callback(server.aclose)
        num_ids = None if kind.samples_all_rows else codec.tokenizer.vocab_size
        if train:
            learner, engine = _load_trainer_and_engine(plan, setup, server, num_ids)
        else:
            learner, engine = None, server or _load_engine_with_own_model(setup, num_ids)
        parts = _assemble_run_parts(plan, codec, engine, learner, players)
        undo.push_async_callback(parts.aclose)
        await kind.begin(engine, setup, learner)
        _check_concurrency_fits_engine(config.rollout, capacity_tokens(engine))
        undo.pop_all()
    return parts


def _check_concurrency_fits_engine(rollout: RolloutConfig, capacity: int | None) -> None:
    """Refuse a number for which there are not even a token of a prompt and a sampled one each."""
    most = rollout.concurrency
    unset = RolloutConfig.model_fields["concurrency"].default
    if capacity is not None and most != "auto" and most > max(unset, capacity // 2):
        raise ConfigError(
            f"rollout.concurrency: got {most} episodes at once, but the engine's cache holds "
            f"{capacity} tokens for all of them; lower it, or set it to auto"
        )


def scripted_parts(plan: Plan, folder: Path, agent: Agent) -> Parts:
    """The parts for episodes of an agent, which has no weights and no budgets of tokens."""
    budgets = {"max_new_tokens": _ENDLESS, "max_context_tokens": _ENDLESS}
    rollout = plan.config.rollout.model_copy(update=budgets)
    plan = replace(plan, config=plan.config.model_copy(update={"rollout": rollout}))
    codec = checked_codec(plan, folder)
    renderer = codec.renderer(plan.envs[0].prototype.tool_schemas)
    return _assemble_run_parts(plan, codec, ScriptedEngine(agent, renderer))


def make_collector(
    engine: Engine,
    codec: Codec,
    config: RunConfig,
    temperature: float,
    players: PlayerPool | None = None,
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
        make_runner=EpisodeRunner if players is None else players.make_runner,
    )
    return Collector(engine=engine, codec=codec, settings=settings)


def _assemble_run_parts(
    plan: Plan,
    codec: Codec,
    engine: Engine,
    learner: Trainer | None = None,
    players: PlayerPool | None = None,
) -> Parts:
    config, services = plan.config, EnvServices(deadline_s=plan.config.fault.deadline_s)
    collector = partial(make_collector, engine, codec, config, players=players)
    return Parts(
        config=config,
        envs=plan.envs,
        codec=codec,
        services=services,
        engine=engine,
        learner=learner,
        players=players,
        jobs=JobMaker(plan.envs, services=services, tokenizer=codec.tokenizer, seed=config.seed),
        collector=collector(config.rollout.temperature),
        eval_collector=collector(config.eval.temperature),
    )


def _load_trainer_and_engine(
    plan: Plan, setup: EngineSetup, server: Engine | None, num_ids: int | None
) -> tuple[Trainer, Engine]:
    """The trainer, and the engine that samples with its weights."""
    from agentrl.engine.local.models.load import load_model
    from agentrl.trainer.algorithms.losses import make_loss
    from agentrl.trainer.device import resolve_device
    from agentrl.trainer.executor import RankTrainer
    from agentrl.trainer.parallel_dims import Ranks
    from agentrl.trainer.roles import TrainerPlan
    from agentrl.trainer.trainer import LocalTrainer

    config = setup.config
    settings, lora = config.trainer, config.trainer.lora
    loss = make_loss(settings, plan.objects.get(settings.loss))
    name = settings.reference_model
    teacher = resolve_model(name, seed=config.seed) if name else None
    if settings.is_apart:
        ranks_plan = TrainerPlan(
            folder=setup.folder,
            config=settings,
            total_steps=config.steps,
            longest=setup.context_length,
            threads=config.threads,
            deterministic=config.deterministic,
            seed=config.seed,
            num_ids=num_ids,
            loss=loss,
            reference=teacher,
        )
        executor = make_executor(config, settings.device)
        trainer = RankTrainer(ranks_plan, executor, apart=place_roles(config))
        return trainer, server or _load_engine_with_own_model(setup, num_ids)
    ranks = Ranks(device=resolve_device(settings.device))
    dtype = lora.dtype if lora.rank else "float32"
    model = load_model(setup.folder, dtype=dtype, device=str(ranks.device), num_ids=num_ids)
    engine = server
    if engine is None and lora.rank and lora.publish == "merged":
        # The engine's copy is made before the model gets adapters.
        engine = _make_local_engine(model, config)
    learner = LocalTrainer(
        model,
        settings,
        total_steps=config.steps,
        longest=setup.context_length,
        reference=load_model(teacher, device=str(ranks.device), num_ids=num_ids)
        if teacher
        else None,
        ranks=ranks,
        loss=loss,
    )
    return learner, engine or _make_local_engine(model, config)


def _load_engine_with_own_model(setup: EngineSetup, num_ids: int | None) -> Engine:
    """A local engine with a model of its own: nothing trains it, or processes of their own do."""
    from agentrl.engine.local.models.load import load_model

    config, lora = setup.config, setup.config.trainer.lora
    dtype = "float32" if setup.is_trained else config.engine.dtype
    model = load_model(setup.folder, dtype=dtype, num_ids=num_ids)
    if setup.is_trained and lora.rank and lora.publish == "adapter":
        from agentrl.trainer.lora import add_adapters

        add_adapters(model, lora)
    return _make_local_engine(model, config)


def _make_local_engine(model: "PreTrainedModel", config: RunConfig) -> Engine:
    """The engine in this process; its weights are its own where the trainer's change meanwhile."""
    from agentrl.engine.local.engine import LocalEngine

    settings = config.engine
    lora = config.trainer.lora
    if config.async_.staleness or (lora.rank and lora.publish == "merged"):
        settings = settings.model_copy(update={"share_weights": False})
    return LocalEngine(model, settings)
