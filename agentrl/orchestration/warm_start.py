"""Supervised training on what an environment's scripted expert does: warm start and `agentrl sft`.

Demonstrations are episodes: the expert plays through the same loop and the same record as the
policy, so what is trained and what is masked is the same as in reinforcement learning.
"""

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson

from agentrl.aio import Runner, run
from agentrl.config import Loaded
from agentrl.config.dump import dump_config
from agentrl.engine.config import SglangConfig, VllmConfig
from agentrl.engine.local.models.resolve import TINY, default_cache_dir, resolve_model
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RolesConfig, RunConfig
from agentrl.orchestration.controller import stat_numbers
from agentrl.orchestration.env_mix import BoundEnv, Overrides
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.model_files import long_prompts
from agentrl.orchestration.observers import Observer, journal, make_observers
from agentrl.orchestration.parts import Parts, build_parts, make_collector
from agentrl.orchestration.preflight import Plan, make_plan
from agentrl.orchestration.run import RunResult
from agentrl.rollout import (
    Collector,
    GroupJob,
    derive_seed,
    gather_groups,
    make_batch,
    succeeded,
    task_stream,
)
from agentrl.run_dir import MetricsWriter, RunDirectory
from agentrl.trainer.algorithms.normalisations import token_mean
from agentrl.trainer.config import LoraConfig
from agentrl.trainer.updates import SupervisedStats
from agentrl.types import Batch, Episode, Score

_TOLD = 5
"""How often a warm start says how far it is."""
_DEALT_AT_ONCE = 100
"""Batches of demonstrations that are shuffled among each other where there are several passes."""


def prepare_model(plan: Plan, observer: Observer, runner: Runner, *, is_trained: bool) -> Path:
    """The folder of the run's model; `tiny` is warm-started where the environments have experts.

    `is_trained`: a checkpoint takes the place of its weights.
    """
    folder = resolve_model(plan.config.model, seed=plan.config.seed)
    # A warm start takes longer than the error of an engine should.
    engine_kind(plan.config, plan.objects).check(plan.config.engine, folder)
    if plan.config.model != TINY:
        return folder
    if any(env.expert is None for env in plan.envs):
        if not is_trained:
            observer.warn(
                "the tiny model starts from random weights, since not every environment has an "
                "`expert` to learn the format from: give it one, or choose another --model"
            )
        return folder
    return runner.run(_find_or_make_warm_started_model(plan, folder, observer))


async def _find_or_make_warm_started_model(plan: Plan, folder: Path, observer: Observer) -> Path:
    """The warm-started tiny model, from the cache or made now."""
    # Adapters alone would leave most of the tiny model random; and it is small enough for one rank.
    alone = {"lora": LoraConfig(), "ranks": 1, "replicate": 1, "sequence_parallel": 1}
    trainer = plan.config.trainer.model_copy(update=alone | {"offload": False})
    whole = replace(plan, config=plan.config.model_copy(update={"trainer": trainer}))
    async with aclosing(await build_parts(supervised_plan(whole), folder)) as parts:
        target = default_cache_dir() / "warm" / await _make_warm_start_cache_key(parts)
        if target.exists():
            observer.note(f"warm start: done before, taken from {target}")
            return target
        observer.phase("warm start")
        updates = plan.config.warm_start.updates
        number, stats = 0, None
        async for number, stats in warm_start(parts):
            if number % max(1, updates // _TOLD) == 0:
                observer.note(f"warm start: update {number} of {updates}, loss {stats.loss:.3f}")
        assert stats is not None
        observer.note(
            f"warm start: {number} updates, loss {stats.loss:.3f}, a demonstration is sampled "
            f"with probability {stats.episode_probability:.2f}"
        )
        # Write the model's folder so that a reader sees all of it or nothing.
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".warm-", dir=target.parent))
        try:
            parts.trainer.export(folder, unfinished / "model")
            (unfinished / "model").rename(target)
        except OSError:
            if not target.exists():  # another process was not faster
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return target


def supervised_run(
    loaded: Loaded[RunConfig], objects: Overrides, observers: Sequence[Observer]
) -> RunResult:
    """Train as `warm_start` says, in a run directory of its own: what `agentrl sft` does.

    Raises:
        ConfigError: an environment has no expert.
    """
    plan = make_plan(loaded.config, objects)
    for env in plan.envs:
        if env.expert is None:
            raise ConfigError(
                f"env {env.name} has no expert to learn from: define the class method `expert`"
            )
    config = loaded.config
    prefix = f"sft-{Path(plan.envs[0].name.split(':')[0]).stem}"
    with RunDirectory.create(Path(config.runs_dir), config.name, prefix=prefix) as directory:
        directory.write_config(dump_config(loaded))
        with journal(directory, [*observers, *make_observers(config, objects)]) as shown:
            for line in long_prompts(plan):
                shown.warn(line)
            base = resolve_model(config.model, seed=config.seed)
            return run(_run_supervised_training_and_export(plan, base, directory, shown))


async def _run_supervised_training_and_export(
    plan: Plan, base: Path, directory: RunDirectory, observer: Observer
) -> RunResult:
    async with aclosing(await build_parts(supervised_plan(plan), base)) as parts:
        with MetricsWriter(directory.metrics) as metrics:
            observer.phase("demonstrations")
            last: dict[str, float] = {}
            async for number, stats in warm_start(parts):
                last = stat_numbers(stats) | {
                    "verified": stats.verified_share,
                    "step_s": stats.seconds,
                }
                metrics.write(number, last)
                observer.step(number, last)
        model = parts.trainer.export(base, directory.path / "model")
        steps = parts.trainer.step
    return RunResult(path=directory.path, model=model, steps=steps, metrics=last, eval=None)


def supervised_plan(plan: Plan) -> Plan:
    """The plan of the warm start that precedes a run."""
    warm = plan.config.warm_start
    trainer = plan.config.trainer.model_copy(
        update={
            "lr": warm.lr,
            "warmup_steps": warm.warmup_steps,
            "schedule": "linear",
            "algorithm": "grpo",  # a critic would have nothing to learn from
            "estimator": None,
            "loss": "clip",
            "normalise": "token_mean",
            "correct": "none",
            "minibatches": 1,
            "epochs": 1,
            "reference": "",
        }
    )
    # The experts sample, so no server is started for it.
    engine = plan.config.engine.model_copy(
        update={"kind": "local", "sglang": SglangConfig(), "vllm": VllmConfig()}
    )
    # What its ranks are is in `trainer`; other roles are not needed for it.
    alone: dict[str, object] = {"pools": {}, "roles": RolesConfig()}
    config = plan.config.model_copy(
        update={"trainer": trainer, "engine": engine, "steps": warm.updates, **alone}
    )
    return replace(plan, config=config)


async def warm_start(parts: Parts) -> AsyncIterator[tuple[int, SupervisedStats]]:
    """Updates until `stop_at` is reached or `updates` are done; yields their number and stats."""
    warm = parts.config.warm_start
    demonstrations = Demonstrations(parts)
    for number in range(1, warm.updates + 1):
        batch = await demonstrations.batch(number)
        stats = parts.trainer.supervised_update(batch, smoothing=warm.smoothing)
        yield number, stats
        if warm.stop_at is not None and stats.episode_probability >= warm.stop_at:
            return


class Demonstrations:
    """Batches of the experts' episodes, which come back in another order in each pass."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._passes = parts.config.warm_start.passes
        self._dealt: list[Sequence[Episode]] = []
        """The batches of the next updates, the next one at the end."""
        self._seed = derive_seed(parts.config.seed, "demonstrations")
        self._collectors = [self._make_expert_collector(env) for env in parts.envs]
        self._stream = task_stream(
            [env.source() for env in parts.envs],
            tasks_per_step=parts.config.warm_start.batch,
            seed=self._seed,
        )

    async def batch(self, update: int) -> Batch:
        """The batch of one update, whose loss is the mean over its tokens."""
        if self._passes > 1 and not self._dealt:
            # Play the demonstrations of the next updates and shuffle them once for each pass.
            played = [e for at in range(_DEALT_AT_ONCE) for e in await self.new(update + at)]
            shuffle = np.random.default_rng(derive_seed(self._seed, "order", update))
            for _ in range(self._passes):
                order = shuffle.permutation(len(played))
                parts = np.array_split(order, _DEALT_AT_ONCE)
                self._dealt += [[played[i] for i in part] for part in parts if len(part)]
            self._dealt.reverse()
        episodes = self._dealt.pop() if self._passes > 1 else await self.new(update)
        batch = make_batch(episodes, temperature=1.0)
        return replace(batch, weights_N=token_mean(batch))

    async def new(self, update: int) -> list[Episode]:
        """A batch of demonstrations that have not been seen."""
        refs = next(self._stream)
        jobs = self._parts.jobs.jobs(
            refs, "train", step=update, purpose="demonstration", run=self._seed
        )
        return [
            episode
            for i, collector in enumerate(self._collectors)
            if (mine := [job for job, ref in zip(jobs, refs, strict=True) if ref.env == i])
            for episode in await self._play_successful_demonstrations(collector, mine)
        ]

    async def _play_successful_demonstrations(
        self, collector: Collector, jobs: Sequence[GroupJob]
    ) -> list[Episode]:
        played = await gather_groups(collector.collect(jobs, group_size=1))
        if not played.episodes:  # all prompts are too long
            return []
        shown = [e for e in played.episodes if _is_worth_demonstrating(e, played.success_at)]
        if not shown:
            first = played.episodes[0]
            raise ConfigError(
                f"the expert of env {first.env} solved none of {len(played.episodes)} tasks (the "
                f"first one ended with {first.stop}): there is nothing to learn from"
            )
        return shown

    def _make_expert_collector(self, env: BoundEnv) -> Collector:
        parts = self._parts
        expert = env.expert
        assert expert is not None, f"env {env.name} has no expert"
        renderer = parts.codec.renderer(env.prototype.tool_schemas)
        engine = ScriptedEngine(expert, renderer)
        return make_collector(engine, parts.codec, parts.config, 1.0)


def _is_worth_demonstrating(episode: Episode, success_at: Mapping[str, float]) -> bool:
    """True for a success, and for a score above 0 where nobody says what a success is."""
    success = succeeded(episode, success_at)
    if success is None:
        return isinstance(episode.outcome, Score) and episode.outcome.value > 0
    return success


async def _make_warm_start_cache_key(parts: Parts) -> str:
    """Names a warm start by all that it is a function of: settings, weights, demonstrations."""
    digest = hashlib.blake2b(digest_size=12)
    config: RunConfig = parts.config
    settings = config.model_dump(
        include={
            "warm_start": True,
            "seed": True,
            "trainer": {"weight_decay", "beta1", "beta2", "max_grad_norm"},
        }
    )
    digest.update(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS))
    for name, tensor in parts.trainer.weights().named_tensors():
        digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    batch = make_batch(await Demonstrations(parts).new(0), temperature=1.0)
    digest.update(batch.ids_N.tobytes() + batch.mask_N.tobytes())
    return f"{Path(parts.envs[0].name.split(':')[0]).stem}-{digest.hexdigest()}"
