"""`Run`: a training run as an object.

    with Run(load_run_config(flags=["--env", "calculator", "--steps", "100"])) as run:
        for step in run:
            print(step.metrics["reward"])

Leaving the block stops the engine and the workers and frees the run directory.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agentrl.config.dump import dump_config
from agentrl.config.load import Loaded
from agentrl.errors import ConfigError
from agentrl.loops import Runner
from agentrl.orchestration.bind import NO_OBJECTS, Objects
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.display import Display, Silent
from agentrl.orchestration.evaluate import EvalResult
from agentrl.orchestration.load import check_resumable
from agentrl.orchestration.plan import Plan, make_plan
from agentrl.rollout import task_stream
from agentrl.runs import RunDirectory

if TYPE_CHECKING:
    from agentrl.orchestration.assembly import Assembly
    from agentrl.orchestration.controller import Estimator, StepResult


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


class Run:
    """Wires a configuration to its parts, owns the run directory, iterates over the steps."""

    def __init__(
        self,
        loaded: Loaded[RunConfig],
        *,
        objects: Objects = NO_OBJECTS,
        resume: bool = False,
        display: Display | None = None,
        estimator: "Estimator | None" = None,
    ) -> None:
        """Nothing is loaded before the `with` block begins.

        Args:
            loaded: the configuration with the origins of its values.
            objects: environments and a verifier given as objects.
            resume: go on with the run called `config.name`.
            display: shows the run.
            estimator: turns a batch into advantages per token instead of GRPO.
        """
        self.config = loaded.config
        self.display: Display = display or Silent()
        self._objects = objects
        self._loaded = loaded
        self._resume = resume
        self._estimator = estimator
        self._last: StepResult | None = None
        self._last_eval: EvalResult | None = None
        self.step = 0
        """Steps done."""

    def __enter__(self) -> Self:
        plan = make_plan(self.config, self._objects, resume=self._resume)
        directory = self._directory(plan)
        from agentrl.orchestration.assembly import assemble  # torch, only now

        with ExitStack() as undo:
            undo.callback(directory.close)
            with self._configured(directory):
                self._runner = undo.enter_context(Runner())
                self._assembly: Assembly = assemble(
                    plan, directory, self._runner, self.display, self._estimator
                )
                undo.callback(self._assembly.close, self._runner)
                self._restore(directory)
            self._undo = undo.pop_all()
        return self

    @contextmanager
    def _configured(self, directory: RunDirectory) -> Generator[None]:
        """Write the configuration before the long preparations, so that a kill can be resumed."""
        if self._resume:
            yield
            return
        directory.write_config(dump_config(self._loaded))
        try:
            yield
        except BaseException:
            directory.forget()
            raise

    def _restore(self, directory: RunDirectory) -> None:
        if not self._resume:
            return
        self.step = self._assembly.restore(self._runner)
        if self.step > self.config.steps:
            raise ConfigError(
                f"steps: got {self.config.steps}, but the run has done {self.step} already; "
                "give a larger --steps to go on"
            )
        self.display.note(f"resumed {directory.name} after step {self.step}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()
        self.display.close()

    def __iter__(self) -> "Iterator[StepResult]":
        """The steps that are left, each done when it is yielded."""
        assembly = self._assembly
        stream = task_stream(
            [env.source() for env in assembly.parts.envs],
            tasks_per_step=self.config.rollout.tasks_per_step,
            seed=self.config.seed,
        )
        refs = islice(stream, self.step, None)
        for number in range(self.step + 1, self.config.steps + 1):
            self._last = self._runner.run(assembly.controller.step(number, next(refs)))
            self._last_eval = self._last.eval or self._last_eval
            if number % self.config.checkpoint.every == 0 or number == self.config.steps:
                self.display.phase("checkpoint")
                trainer, version = assembly.parts.trainer, assembly.controller.version
                assembly.store.save(trainer, number, version, self._last.metrics)
            self.step = number
            yield self._last

    def evaluate(self) -> EvalResult:
        """Play the held-out tasks with the weights of now."""
        self._last_eval = self._runner.run(self._assembly.controller.evaluate(self.step))
        return self._last_eval

    def result(self) -> RunResult:
        """Export the model and say what there is."""
        return RunResult(
            path=self._assembly.store.directory.path,
            model=self._assembly.export(),
            steps=self.step,
            metrics=self._last.metrics if self._last is not None else {},
            eval=self._last_eval,
        )

    def _directory(self, plan: Plan) -> RunDirectory:
        config = self.config
        root = Path(config.runs_dir)
        if self._resume:
            if config.name is None:
                raise ConfigError("resuming needs the run's name: got none, pass name=...")
            directory = RunDirectory.open(root, config.name, write=True)
            check_resumable(directory.config, config, self._objects)
            return directory
        prefix = Path(plan.envs[0].name.split(":")[0]).stem
        return RunDirectory.create(root, config.name, prefix=prefix)
