"""A run of supervised training alone: what `agentrl sft` does."""

from collections.abc import Sequence
from pathlib import Path

from agentrl.aio import run
from agentrl.config import Loaded
from agentrl.config.dump import dump_config
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.controller import stat_numbers
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.journal import journal
from agentrl.orchestration.observers import Observer, make_observers
from agentrl.orchestration.parts import Parts, build_parts
from agentrl.orchestration.preflight import Plan, make_plan
from agentrl.orchestration.prompts import long_prompts
from agentrl.orchestration.run import RunResult
from agentrl.orchestration.warm_start import supervised_plan, warm_start
from agentrl.run_dir import MetricsWriter, RunDirectory


def supervised_run(
    loaded: Loaded[RunConfig], objects: Overrides, observers: Sequence[Observer]
) -> RunResult:
    """Train as `warm_start` says, in a run directory of its own.

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
            return run(_train_supervised(plan, base, directory, shown))


async def _train_supervised(
    plan: Plan, base: Path, directory: RunDirectory, observer: Observer
) -> RunResult:
    parts = build_parts(supervised_plan(plan), base)
    try:
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
        return _make_result(parts, base, directory, last)
    finally:
        await parts.aclose()


def _make_result(
    parts: Parts, base: Path, directory: RunDirectory, last: dict[str, float]
) -> RunResult:
    folder = directory.path / "model"
    parts.trainer.export(base, folder)
    return RunResult(
        path=directory.path, model=folder, steps=parts.trainer.step, metrics=last, eval=None
    )
