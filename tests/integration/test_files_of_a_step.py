"""How many files a reader goes through who follows one step of a run."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

import agentrl
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs.calculator import Calculator
from agentrl.orchestration import parts as parts_module
from agentrl.orchestration.controller import Controller
from agentrl.orchestration.parts import Parts
from agentrl.tokens.hash_chain import seal
from agentrl.types import Completion, EpisodeSession, Sampling

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentrl", "envs", "tools", "sandboxes", "trainer")
MOST_FILES = 95
"""55 is the aim; 3 are the rows that each rank gets alone, 1 is where episodes are played."""


class Tracer:
    """Collects the files of which a function is called, in whatever thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        # The status is written every second, which falls into a step or does not.
        if self.is_on and event == "call" and threading.current_thread().name != "status":
            self.files.add(frame.f_code.co_filename)

    def own_files(self) -> list[str]:
        paths = {Path(file).resolve() for file in self.files if not file.startswith("<")}
        own = [path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)]
        # What lets the expert speak in the model's place is the test's, no part of a step.
        staged = ("scripted.py", "agents.py")
        return sorted(
            str(path) for path in own if path.parts[0] in FOLDERS and path.name not in staged
        )


@pytest.fixture
def tracer() -> Tracer:
    return Tracer()


def test_a_step_goes_through_few_files(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracer: Tracer
) -> None:
    built: list[Parts] = []
    done: list[object] = []
    build_parts, step, sample = parts_module.build_parts, Controller.step, LocalEngine.generate

    async def build(*args: object, **options: object) -> Parts:
        built.append(await build_parts(*args, **options))  # type: ignore[arg-type]  # as they are
        return built[0]

    async def traced(self: Controller) -> object:
        tracer.is_on = bool(done)  # the first one makes what is made once
        try:
            done.append(await step(self))
        finally:
            tracer.is_on = False
        return done[-1]

    async def generate(
        self: LocalEngine, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """What the expert says, since random weights call no tool; sampled all the same."""
        await sample(self, ids, sampling, session)
        trainer, codec = built[0].trainer, built[0].codec
        expert = ScriptedEngine(Calculator.expert(), codec.renderer(Calculator().tool_schemas))
        said = await expert.generate(ids, sampling, session)
        logprobs = trainer.logprobs([*ids, *said.ids_T.tolist()])[-len(said.ids_T) :]
        versions = [(await self.health()).version] * len(logprobs)
        return seal(said.ids_T, logprobs, versions, said.stop_reason)

    monkeypatch.setattr(parts_module, "build_parts", build)
    monkeypatch.setattr(Controller, "step", traced)
    monkeypatch.setattr(LocalEngine, "generate", generate)
    monkeypatch.setattr(threading, "_profile_hook", tracer)  # of threads that begin
    sys.setprofile(tracer)
    try:
        with agentrl.Run(
            "calculator",
            model=str(tiny_folder),
            runs_dir=str(tmp_path),
            steps=2,
            threads=1,
            tasks_per_step=2,
            group_size=2,
            rollout={"max_new_tokens": 64},
        ) as run:
            results = list(run)
    finally:
        sys.setprofile(None)
    assert results[1].metrics["reward"] == 1.0
    files = tracer.own_files()
    print("\n" + "\n".join(files))
    assert {"tools/runner.py", "trainer/trainer.py", "agentrl/tokens/record.py"} <= set(files)
    assert len(files) <= MOST_FILES
