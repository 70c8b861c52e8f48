"""`PlannedRun` around parts that keep a log: steps, checkpoints, resumption, how it is wired."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, RunError
from agentrl.orchestration import parts, store, warm_start
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.parts import Parts
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.run import PlannedRun
from agentrl.rollout import TaskRef
from agentrl.run_dir import RunDirectory
from tests.unit.orchestration.stand_ins import (
    STATS,
    Log,
    LoggedStore,
    LoggedTrainer,
    make_parts,
)

FEW = ["--tasks-per-step", "2", "--group-size", "2", "--eval.tasks", "2"]
MakeRun = Callable[..., PlannedRun]


class Wiring:
    """Puts parts that keep a log in the place of what a run builds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = Log()
        self.trainer = LoggedTrainer(self.log)
        self.store = LoggedStore(self.log)

    def prepare_model(self, *_: object, **__: object) -> Path:
        return self.folder

    async def build_parts(self, plan: Plan, folder: Path, **_: object) -> Parts:
        return make_parts(folder, self.log, self.trainer, plan.config)

    def make_store(self, directory: RunDirectory, **_: object) -> LoggedStore:
        self.store.directory = directory
        return self.store


@pytest.fixture
def wiring(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Wiring:
    wiring = Wiring(tiny_folder)
    monkeypatch.setattr(parts, "build_parts", wiring.build_parts)
    monkeypatch.setattr(store, "RunStore", wiring.make_store)
    monkeypatch.setattr(warm_start, "prepare_model", wiring.prepare_model)
    return wiring


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(*flags: str, **given: Any) -> PlannedRun:
        where = ["--runs-dir", str(given.pop("root", tmp_path)), "--name", "one"]
        start = ["--env", "calculator", "--model", "tiny", *FEW, *where, *flags]
        return PlannedRun(load_run_config(flags=start), **given)

    return make


def kinds(tmp_path: Path) -> list[str]:
    lines = (tmp_path / "one" / "events.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_steps_are_done_as_they_are_asked_for(wiring: Wiring, make_run: MakeRun) -> None:
    with make_run("--steps", "3", "--checkpoint.every", "2") as run:
        assert (run.step, wiring.log) == (0, [])
        steps = iter(run)
        assert next(steps).step == run.step == 1
        assert wiring.log.count("update") == 1
        assert [step.step for step in steps] == [2, 3]
        written = [line for line in wiring.log if line.startswith("saved")]
        assert written == ["saved 2", "saved 3"]  # when due, and at the end
        assert wiring.store.saved == (3, 3)
    assert wiring.log[-2:] == ["trainer closed", "store closed"]


def test_a_resumed_run_serves_what_it_had_published(
    wiring: Wiring, make_run: MakeRun, tmp_path: Path
) -> None:
    with make_run("--steps", "2") as run:
        first = [step.collected.episodes[0].task.id for step in run]
    wiring.log.clear()
    with make_run("--steps", "4", resume=True) as run:
        assert run.step == 2
        assert wiring.log == ["publish 2"]
        later = [step.collected.episodes[0].task.id for step in run]
    assert wiring.store.saved == (4, 4)
    assert kinds(tmp_path).count("resume") == 1
    with make_run("--steps", "4", root=tmp_path / "whole") as run:
        assert [step.collected.episodes[0].task.id for step in run] == [*first, *later]


def test_a_resumed_run_prepares_batches_as_it_would_have(
    wiring: Wiring, make_run: MakeRun, tmp_path: Path
) -> None:
    """A running scale and a coefficient that moves go on where they were."""
    flags = ["--trainer.reward.running", "--trainer.kl.coef", "0.5", "--trainer.kl.target", "0.01"]

    def trained(first: int, **given: Any) -> list[tuple[float | None, list[float]]]:
        wiring.trainer.batches.clear()
        with make_run("--steps", str(first), *flags, **given) as run:
            list(run)
        return [(batch.kl_coef, batch.rewards_E.tolist()) for batch in wiring.trainer.batches]

    parts = [*trained(2), *trained(4, resume=True)]
    assert len({coef for coef, _ in parts}) == 4
    assert parts == trained(4, root=tmp_path / "whole")


class Resumed(Iterator[list[TaskRef]]):
    """Draws by what it drew before; made anew it begins at the beginning."""

    def __init__(self, sources: object, *, tasks_per_step: int, seed: int) -> None:
        self.drawn = [seed]

    def __next__(self) -> list[TaskRef]:
        self.drawn = [*self.drawn[-3:], sum(self.drawn) % 1000 + len(self.drawn)]
        return [TaskRef(0, self.drawn[-1]), TaskRef(0, self.drawn[-1] + 1)]

    def state(self) -> object:
        return self.drawn

    def load(self, state: Any) -> None:
        self.drawn = state


@pytest.mark.parametrize("stop", ["at the end", "in a step"])
def test_a_sampler_of_ones_own_goes_on_where_it_was(
    wiring: Wiring, make_run: MakeRun, tmp_path: Path, stop: str
) -> None:
    steps_asked = 0

    def estimate(batch: Any) -> Any:
        nonlocal steps_asked
        if batch.num_rows == 4:  # the one that it is tried on has 5
            steps_asked += 1
            if stop == "in a step" and steps_asked == 3:
                raise KeyboardInterrupt
        return batch.mask_N.astype("float32")

    def play(*flags: str, **given: Any) -> list[str]:
        sampled = [*flags, "--sampler", "<own>", "--estimator", "<estimate>"]
        ids: list[str] = []
        with (
            suppress(KeyboardInterrupt),
            make_run(*sampled, "--checkpoint.every", "100", objects=objects, **given) as run,
        ):
            for step in run:
                ids += [e.task.id for e in step.collected.episodes]
        return ids

    objects = Overrides(given={"<own>": Resumed, "<estimate>": estimate})
    first = play("--steps", "2" if stop == "at the end" else "4")
    assert wiring.store.saved == (2, 2)
    later = play("--steps", "4", resume=True)
    whole = play("--steps", "4", root=tmp_path / "whole")
    assert [*first, *later] == whole
    assert len({*whole}) > 4


def test_what_a_run_was_given_reaches_its_controller(wiring: Wiring, make_run: MakeRun) -> None:
    asked: list[int] = []

    def estimate(batch: Any) -> Any:
        asked.append(batch.num_rows)
        return batch.mask_N.astype("float32")

    objects = Overrides(given={"<estimate>": estimate})
    with make_run("--steps", "1", "--estimator", "<estimate>", objects=objects) as run:
        list(run)
        assert run.evaluate().episodes == 2
    assert asked == [5, 5, 4]  # the made-up batch twice
    assert "evaluated 1" in wiring.log


def test_a_failed_step_leaves_the_checkpoint_before_it(
    wiring: Wiring, make_run: MakeRun, tmp_path: Path
) -> None:
    wiring.trainer.answers = [STATS, RunError("the loss is not finite")]
    run = make_run("--steps", "3", "--checkpoint.every", "1")
    with pytest.raises(RunError, match="not finite"), run:
        list(run)
    assert wiring.store.saved == (1, 1)
    assert wiring.log[-2:] == ["trainer closed", "store closed"]
    assert kinds(tmp_path)[-1] == "stopped"


def test_a_run_that_cannot_be_wired_leaves_no_directory(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError("no such model")

    monkeypatch.setattr(warm_start, "prepare_model", fail)
    with pytest.raises(ConfigError, match="no such model"), make_run("--steps", "1"):
        pass
    assert not (tmp_path / "one" / "config.toml").exists()


def test_ctrl_c_between_steps_keeps_the_last_one(wiring: Wiring, make_run: MakeRun) -> None:
    def interrupt_behind(run: PlannedRun, last: int) -> None:
        with run:
            for step in run:
                if step.step == last:
                    raise KeyboardInterrupt

    run = make_run("--steps", "9", "--checkpoint.every", "100")
    with pytest.raises(KeyboardInterrupt, match="step 2 is kept; go on with"):
        interrupt_behind(run, 2)
    assert wiring.store.saved == (2, 2)
