"""Everything heavy that a run needs, behind one import: `Run` itself stays light."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agentrl.aio import Runner
from agentrl.orchestration.controller import Controller
from agentrl.orchestration.fingerprints import Fingerprints
from agentrl.orchestration.journal import Journal
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.parts import Parts, build_parts
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.prompts import long_prompts
from agentrl.orchestration.stopping import Stopping
from agentrl.orchestration.store import RunStore
from agentrl.orchestration.warm_start import prepare_model
from agentrl.run_dir import RunDirectory
from agentrl.trainer.algorithms.estimators import make_estimator
from agentrl.trainer.checkpoint import random_states, set_random_states
from agentrl.trainer.lora import adapter_reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of a run, wired."""

    parts: Parts
    store: RunStore
    controller: Controller
    base_model: Path

    def restore(self, runner: Runner) -> int:
        """Load the newest checkpoint into trainer and engine; the number of steps done."""
        step, version = self.store.restore(self.parts.trainer, self.parts.config.steps)
        if version:
            runner.run(self.parts.engine.update_weights(self.parts.trainer.weights(), version))
        self.controller.version = version
        return step

    def random_states(self) -> Mapping[str, object]:
        """Those that a checkpoint of now would hold."""
        return random_states()

    def set_random_states(self, states: Mapping[str, object]) -> None:
        """Put them back, for a step that was given up."""
        set_random_states(states)

    def close(self, runner: Runner) -> None:
        """Stop engine and workers, close the files."""
        try:
            runner.run(self.parts.aclose())
        finally:
            self.store.close()

    def export(self) -> Path:
        """Write the model of now as a Hugging Face folder into the run directory."""
        folder = self.store.directory.path / "model"
        self.parts.trainer.export(self.base_model, folder)
        return folder


def assemble(
    plan: Plan,
    directory: RunDirectory,
    runner: Runner,
    journal: Journal,
    prints: Fingerprints,
    stopping: Stopping,
) -> Assembly:
    """Prepare the model, load it, and wire engine, trainer and store."""
    for line in long_prompts(plan):
        journal.warn(line)
    is_trained = any(directory.checkpoints.glob("step-*"))
    settings = plan.config.trainer
    base_model = prepare_model(plan, journal, runner, is_trained=is_trained)
    show_adapters(plan, base_model, journal)
    parts = build_parts(plan, base_model, directory.path / "engine")
    with ExitStack() as undo:
        undo.callback(lambda: runner.run(parts.aclose()))
        runner.run(start_engine(parts, plan, journal))
        store = RunStore(
            directory,
            base_model=base_model,
            config=plan.config.checkpoint,
            events=journal.events,
            prints=prints,
        )
        undo.callback(store.close)
        controller = Controller(
            parts=parts,
            store=store,
            observer=journal,
            stopping=stopping,
            estimator=make_estimator(settings, plan.objects.get(settings.estimator)),
        )
        undo.pop_all()
    return Assembly(parts=parts, store=store, controller=controller, base_model=base_model)


def show_adapters(plan: Plan, folder: Path, observer: Observer) -> None:
    """Say what LoRA trains and what it leaves as it is."""
    lora = plan.config.trainer.lora
    if lora.rank:
        reach = adapter_reach(folder, lora)
        show = observer.warn if reach.experts else observer.note
        show(reach.text)


async def start_engine(parts: Parts, plan: Plan, observer: Observer) -> None:
    """Wait until the engine can be used."""
    if not engine_kind(plan.config, plan.objects).in_process:
        observer.phase("engine")
    await parts.begin()
