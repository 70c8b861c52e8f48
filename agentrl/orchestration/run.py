"""`PlannedRun`: a training run as an object.

    with PlannedRun(load_run_config(flags=["--env", "calculator", "--steps", "100"])) as run:
        for step in run:
            print(step.metrics["reward"])

Leaving the block stops the engine and the workers and frees the run directory.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentrl.aio import Runner
from agentrl.config import Loaded
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.evaluate import EvalResult
from agentrl.orchestration.fingerprints import compare_fingerprints, take_fingerprints
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.layers import Layers, first_layer, write_layer
from agentrl.orchestration.model_files import long_prompts
from agentrl.orchestration.observers import Journal, Observer, make_observers
from agentrl.orchestration.placement.machines import check_machines
from agentrl.orchestration.preflight import Plan, make_plan
from agentrl.orchestration.resumable import check_resumable
from agentrl.orchestration.schedules import make_admission
from agentrl.orchestration.stopping import GivenUp, Stopping
from agentrl.orchestration.teacher import reach_teacher
from agentrl.orchestration.whereabouts import keep_status, tell_waits_on_signal
from agentrl.rollout.sampler import TaskSampler
from agentrl.run_dir import RunDirectory
from agentrl.terminated import Terminated

if TYPE_CHECKING:
    from agentrl.orchestration.controller import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a finished run leaves."""

    path: Path
    """The run directory."""
    model: Path
    """The trained model as a Hugging Face folder."""
    steps: int
    metrics: Mapping[str, float]
    """Those of the last step."""
    eval: EvalResult | None
    """The last evaluation, if there was one."""


class PlannedRun:
    """Wires a configuration to its parts, owns the run directory, iterates over the steps."""

    def __init__(
        self,
        loaded: Loaded[RunConfig],
        *,
        objects: Overrides = NO_OBJECTS,
        resume: bool = False,
        observers: Sequence[Observer] = (),
        accept_changes: bool = False,
    ) -> None:
        """Nothing is loaded before the `with` block begins.

        Args:
            loaded: the configuration with the origins of its values.
            objects: what is given as objects, where the configuration has names.
            resume: go on with the run called `config.name`.
            observers: watch the run, beside those that the configuration names.
            accept_changes: resume although tasks have changed.
        """
        self.config = loaded.config
        self._observers = observers
        self._objects = objects
        self._loaded = loaded
        self._resume = resume
        self._accepts_changes = accept_changes
        self._metrics: Mapping[str, float] = {}
        self._last_eval: EvalResult | None = None
        self._stopping = Stopping()
        self._kept = 0
        self._is_in_step = False
        self._sampled = ""
        """The state of the sampler behind the last step that was done."""
        self._prepared = ""
        """The state of the recipe behind it."""
        self._groups = ""
        """The groups that were open behind it."""
        self.step = 0
        """Steps done."""

    def __enter__(self) -> Self:
        plan = make_plan(self.config, self._objects, resume=self._resume)
        check_machines(self.config)
        with ExitStack() as undo:
            undo.enter_context(self._stopping)
            directory = undo.enter_context(self._open_or_create_run_directory(plan))
            self._prints = take_fingerprints(plan)
            if self._resume:
                check_resumable(directory, self._loaded, self._objects)
                self._changed = compare_fingerprints(directory, self._prints)
                self._changed.check(accepts=self._accepts_changes)
                directory.mark_last()
            observers = [*self._observers, *make_observers(self.config, self._objects)]
            self._journal = Journal(directory, observers)
            undo.callback(self._journal.close)
            with self._record_run_start_or_undo(directory):
                self._runner = undo.enter_context(Runner())
                self._build_controller(plan, directory, undo)
                if self._resume:
                    self._restore_newest_checkpoint(directory)
            self._undo = undo.pop_all()
        return self

    def _build_controller(self, plan: Plan, directory: RunDirectory, undo: ExitStack) -> None:
        """Prepare the model, load it, and make the controller of the parts around it."""
        from agentrl.orchestration import parts, store, warm_start  # torch, only now
        from agentrl.orchestration.controller import Controller
        from agentrl.trainer.algorithms.recipe import make_recipe

        runner, journal, settings = self._runner, self._journal, self.config.trainer
        for line in long_prompts(plan):
            journal.warn(line)
        teacher = reach_teacher(plan)
        is_trained = any(directory.checkpoints.glob("step-*"))
        self._base = warm_start.prepare_model(plan, journal, runner, is_trained=is_trained)
        _announce_lora_and_server(plan, self._base, journal)
        self._store = store.RunStore(
            directory,
            base_model=self._base,
            config=self.config.checkpoint,
            events=journal.events,
            prints=self._prints,
        )
        undo.callback(self._store.close)
        self._parts = runner.run(
            parts.build_parts(plan, self._base, logs=directory.path / "engine")
        )
        undo.callback(lambda: runner.run(self._parts.aclose()))
        for line in self._parts.places:
            journal.note(line)
        self._controller = controller = Controller(
            parts=self._parts,
            store=self._store,
            observer=journal,
            stopping=self._stopping,
            recipe=make_recipe(settings, plan.objects.get, seed=self.config.seed, teacher=teacher),
            admission=make_admission(self.config, plan.objects),
        )
        undo.callback(lambda: runner.run(controller.aclose()))
        undo.enter_context(tell_waits_on_signal(controller.waits))
        undo.enter_context(keep_status(directory.status, lambda: self.step, controller.waits))

    @contextmanager
    def _record_run_start_or_undo(self, directory: RunDirectory) -> Generator[None]:
        """Write the configuration before the long preparations, so that a kill can be resumed."""
        try:
            if not self._resume:
                write_layer(directory, self._loaded, first_layer(self._loaded))
                self._journal.events.write("start")
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | Terminated):
                _append_to_stop_message(
                    error, f"before the first step; {_format_resume_hint(directory)}"
                )
            elif not self._resume:
                directory.forget()
            self._journal.stopped(error)
            raise

    def _restore_newest_checkpoint(self, directory: RunDirectory) -> None:
        """Go on from the newest checkpoint; only now does what was given hold for good."""
        before = Layers.started(directory, self._objects)
        parts, controller = self._parts, self._controller
        restored = self._store.restore(parts.trainer)
        step, controller.version, self._sampled, self._prepared, self._groups = restored
        controller.recipe.load(self._prepared)
        if controller.version:
            weights = parts.trainer.weights()
            self._runner.run(parts.engine.update_weights(weights, controller.version))
        self.step = self._kept = step
        layer = before.next(self._loaded, self.step)
        if accepted := self._changed.data:
            layer = replace(layer, accepted=accepted, data=self._prints.data)
        write_layer(directory, self._loaded, layer)
        changes, kept = layer.changes(), Layers((*before.layers, layer)).kept()
        self._journal.events.write("resume", step=self.step, changes=changes, kept=kept)
        note = f"resumed {directory.name} after step {self.step}"
        for what, values in (("with", changes), ("still with", kept)):
            note += f"; {what} {', '.join(values)}" if values else ""
        self._journal.note(note)
        if self._changed.sources:
            sources = ", ".join(self._changed.sources)
            self._journal.events.write("changed", sources=sources)
            self._journal.warn(f"the file of {sources} is another than before step {self.step}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._undo:
            if isinstance(error, KeyboardInterrupt | Terminated):
                # Write the last step that was done, if what a signal broke off changed nothing.
                if self.step > self._kept and not self._is_in_step and not self._stopping.is_urgent:
                    self._save_checkpoint()
                kept = f"step {self._kept} is kept" if self._kept else "no step is kept"
                _append_to_stop_message(
                    error, f"{kept}; {_format_resume_hint(self._store.directory)}"
                )
            if error is not None:
                self._journal.stopped(error)

    def __iter__(self) -> "Iterator[StepResult]":
        """The steps that are left, each done when it is yielded."""
        sampler = TaskSampler(
            self.config.rollout,
            [env.source() for env in self._parts.envs],
            seed=self.config.seed,
            given=self._objects.get(self.config.rollout.sampler),
        )
        sampler.load(self.step, self._sampled)
        self._runner.run(self._controller.begin(sampler.draw_one, self.step, self._groups))
        for number in range(self.step + 1, self.config.steps + 1):
            with self._stopping.step():
                last = self._run_step_and_save_if_due(number, sampler)
            yield last

    def _run_step_and_save_if_due(self, number: int, sampler: TaskSampler) -> "StepResult":
        """A step with its checkpoint, if one is due or a signal came."""
        from agentrl.trainer.checkpoint import random_states, set_random_states  # brings torch

        before = random_states()
        self._is_in_step = True
        try:
            result = self._runner.run(self._controller.step())
        except (GivenUp, KeyboardInterrupt, Terminated):
            if self._parts.trainer.give_up():
                set_random_states(before)
                self._is_in_step = False
            raise
        self._is_in_step = False
        self._metrics, self.step, self._sampled = result.metrics, number, sampler.state(number)
        self._prepared = self._controller.recipe.state()
        self._groups = self._controller.open_groups()
        self._last_eval = result.eval or self._last_eval
        due = number % self.config.checkpoint.every == 0 or number == self.config.steps
        if due or self._stopping.number:
            self._save_checkpoint()
        return result

    def _save_checkpoint(self) -> None:
        self._journal.phase("checkpoint")
        trainer, version = self._parts.trainer, self._controller.version
        with self._stopping.writing():
            states = self._sampled, self._prepared, self._groups
            self._store.save(trainer, self.step, version, self._metrics, *states)
            self._controller.forget_trained_turns()
        self._kept = self.step

    def evaluate(self) -> EvalResult:
        """Play the held-out tasks with the weights of now."""
        self._last_eval = self._runner.run(self._controller.evaluate(self.step))
        return self._last_eval

    def result(self) -> RunResult:
        """Export the model and say what there is."""
        path = self._store.directory.path
        return RunResult(
            path=path,
            model=self._parts.trainer.export(self._base, path / "model"),
            steps=self.step,
            metrics=self._metrics,
            eval=self._last_eval,
        )

    def _open_or_create_run_directory(self, plan: Plan) -> RunDirectory:
        config = self.config
        root = Path(config.runs_dir)
        if self._resume:
            if config.name is None:
                raise ConfigError("resuming needs the run's name: got none, pass name=...")
            return RunDirectory.open(root, config.name, write=True)
        prefix = Path(plan.envs[0].name.split(":")[0]).stem
        return RunDirectory.create(root, config.name, prefix=prefix)


def _announce_lora_and_server(plan: Plan, folder: Path, observer: Observer) -> None:
    """Say what LoRA trains and what it leaves as it is, and that a server is waited for."""
    lora = plan.config.trainer.lora
    if lora.rank:
        from agentrl.trainer.lora import adapter_reach  # brings torch

        reach = adapter_reach(folder, lora)
        show = observer.warn if reach.experts else observer.note
        show(reach.text)
    if not engine_kind(plan.config, plan.objects).in_process:
        observer.phase("engine")


def _append_to_stop_message(stop: KeyboardInterrupt | Terminated, what: str) -> None:
    """Let what stopped the run say what is left of it."""
    if isinstance(stop, Terminated):
        stop.message += f"; {what}"
    else:
        stop.args = (f"interrupted; {what}",)


def _format_resume_hint(directory: RunDirectory) -> str:
    here = directory.path.parent == Path(str(RunConfig.model_fields["runs_dir"].default)).absolute()
    return f"go on with: agentrl train --resume {directory.name if here else directory.path}"
