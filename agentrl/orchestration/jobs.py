"""The jobs of the command line and of the Python API, each from a loaded configuration."""

from collections.abc import Sequence
from contextlib import aclosing

from agentrl.aio import run as run_coroutine
from agentrl.config import Loaded
from agentrl.engine.local.models.resolve import resolve_model, resolve_tokenizer
from agentrl.extras import TRAIN, require
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.evaluate import EvalResult, make_agent
from agentrl.orchestration.evaluate import evaluate as play_heldout
from agentrl.orchestration.model_files import long_prompts
from agentrl.orchestration.observers import Observer, Observers, make_observers
from agentrl.orchestration.parts import build_parts, scripted_parts
from agentrl.orchestration.preflight import make_plan
from agentrl.orchestration.run import PlannedRun, RunResult
from agentrl.rollout import Collected


def train(
    loaded: Loaded[RunConfig],
    *,
    objects: Overrides = NO_OBJECTS,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    accept_changes: bool = False,
) -> RunResult:
    """Train to the end of `config.steps` and export the model."""
    run = PlannedRun(
        loaded,
        objects=objects,
        resume=resume,
        observers=observers,
        accept_changes=accept_changes,
    )
    with run:
        for _ in run:
            pass
        return run.result()


def evaluate(
    config: RunConfig,
    *,
    objects: Overrides = NO_OBJECTS,
    agent: str = "",
) -> tuple[EvalResult, Collected]:
    """Play held-out tasks with a model, or with a scripted agent; no trainer is loaded."""
    plan = make_plan(config, objects, train=False, scripted=bool(agent))
    resolve = resolve_tokenizer if agent else resolve_model
    folder = resolve(config.model, seed=config.seed)
    if not agent:
        long_prompts(plan, train=False)

    async def play() -> tuple[EvalResult, Collected]:
        if agent:
            player = make_agent(agent, plan.envs, config.seed)
            parts = scripted_parts(plan, folder, player)
        else:
            parts = await build_parts(plan, folder, train=False)
        async with aclosing(parts):
            return await play_heldout(parts, 0, told.groups)

    told = Observers(make_observers(config, objects))
    try:
        result, collected = run_coroutine(play())
        told.episodes(0, collected.episodes)
        told.eval(0, result)
    finally:
        told.close()
    return result, collected


def sft(
    loaded: Loaded[RunConfig],
    *,
    objects: Overrides = NO_OBJECTS,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train on the experts' demonstrations and export the model."""
    require("training", *TRAIN)
    from agentrl.orchestration.warm_start import supervised_run

    return supervised_run(loaded, objects, observers)
