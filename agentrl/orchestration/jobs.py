"""The jobs of the command line and of the Python API, each from a loaded configuration."""

from collections.abc import Callable, Sequence

from agentrl.aio import run as run_coroutine
from agentrl.config import Loaded
from agentrl.engine.local.models.resolve import resolve_model, resolve_tokenizer
from agentrl.extras import TRAIN, require
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.evaluate import EvalResult
from agentrl.orchestration.observers import Observer, Observers, make_observers
from agentrl.orchestration.preflight import Plan, make_plan
from agentrl.orchestration.run import PlannedRun, RunResult
from agentrl.rollout import Collected
from agentrl.types import Episode


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
    on_episode: Callable[[Episode], None] = lambda _: None,
    agent: str = "",
) -> tuple[EvalResult, Collected]:
    """Play held-out tasks with a model, or with a scripted agent; no trainer is loaded."""
    from agentrl.orchestration.prompts import long_prompts
    from agentrl.orchestration.sampling import evaluate_once, sampling_parts
    from agentrl.orchestration.scripted import scripted_parts

    plan = make_plan(config, objects, train=False, scripted=bool(agent))
    resolve = resolve_tokenizer if agent else resolve_model
    folder = resolve(config.model, seed=config.seed)
    if not agent:
        long_prompts(plan, train=False)

    async def play(plan: Plan) -> tuple[EvalResult, Collected]:
        if agent:
            plan, parts = scripted_parts(plan, folder, agent)
        else:
            parts = sampling_parts(plan, folder)
        try:
            await parts.begin()
            return await evaluate_once(plan, parts, on_episode)
        finally:
            await parts.aclose()

    told = Observers(make_observers(config, objects))
    try:
        result, collected = run_coroutine(play(plan))
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
    from agentrl.orchestration.supervised import supervised_run

    return supervised_run(loaded, objects, observers)
