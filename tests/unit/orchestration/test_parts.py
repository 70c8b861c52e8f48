"""The parts of a run: what is built after what, and what is closed when something fails."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.engine import Engine
from agentrl.engine.local.models import load
from agentrl.errors import ConfigError
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.evaluate import evaluate, make_agent
from agentrl.orchestration.kinds import EngineKind, EngineSetup
from agentrl.orchestration.parts import Parts, build_parts, scripted_parts
from agentrl.orchestration.preflight import Plan, make_plan
from agentrl.trainer.trainer import LocalTrainer
from tests.unit.orchestration.stand_ins import (
    Log,
    LoggedEngine,
    LoggedTrainer,
    configuration,
    make_parts,
)


class Served(EngineKind):
    """A server that keeps a log."""

    honours_seeds = True
    log: ClassVar[Log] = Log()
    refuses: ClassVar[bool] = False

    def start(self, setup: EngineSetup) -> Engine:
        self.log.append("start")
        return LoggedEngine(setup.codec, self.log)

    async def begin(self, engine: Engine, setup: EngineSetup, trainer: object) -> None:
        self.log.append(f"ready for {type(trainer).__name__}")
        if self.refuses:
            raise ConfigError("it would bias training")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log, load_model, close = Log(), load.load_model, LocalTrainer.close

    def logged_load(*args: Any, **options: Any) -> Any:
        log.append("load")
        return load_model(*args, **options)

    def logged_close(self: LocalTrainer) -> None:
        log.append("trainer closed")
        close(self)

    monkeypatch.setattr(Served, "log", log)
    monkeypatch.setattr(load, "load_model", logged_load)
    monkeypatch.setattr(LocalTrainer, "close", logged_close)
    return log


def served_plan(tmp_path: Path, *flags: str) -> Plan:
    config = configuration(
        "--engine", "<it>", "--runs-dir", str(tmp_path), "--threads", "1", *flags
    )
    return make_plan(config, Overrides(given={"<it>": Served}))


async def test_a_server_starts_first_and_is_waited_for_last(
    tiny_folder: Path, tmp_path: Path, log: Log
) -> None:
    parts = await build_parts(served_plan(tmp_path), tiny_folder)
    assert log == ["start", "load", "ready for LocalTrainer"]
    assert isinstance(parts.engine, LoggedEngine)
    await parts.aclose()
    assert log[3:] == ["engine closed", "trainer closed"]


async def test_without_training_a_server_has_the_weights_alone(
    tiny_folder: Path, tmp_path: Path, log: Log
) -> None:
    parts = await build_parts(served_plan(tmp_path), tiny_folder, train=False)
    assert log == ["start", "ready for NoneType"]
    with pytest.raises(AssertionError, match="train=False"):
        _ = parts.trainer
    await parts.aclose()


async def test_what_the_folder_says_is_checked_before_a_server_starts(
    tiny_folder: Path, tmp_path: Path, log: Log
) -> None:
    plan = served_plan(tmp_path, "--rollout.max-context-tokens", "1000000")
    with pytest.raises(ConfigError, match=r"rollout\.max_context_tokens: got 1000000"):
        await build_parts(plan, tiny_folder)
    assert log == []


async def test_a_server_beside_which_no_model_loads_is_stopped(
    tiny_folder: Path, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError("its weights are cut off")

    monkeypatch.setattr(load, "load_model", fail)
    with pytest.raises(ConfigError, match="cut off"):
        await build_parts(served_plan(tmp_path), tiny_folder)
    assert log == ["start", "engine closed"]


async def test_all_parts_of_a_refused_server_are_closed(
    tiny_folder: Path, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "refuses", True)
    with pytest.raises(ConfigError, match="bias training"):
        await build_parts(served_plan(tmp_path), tiny_folder)
    assert log[3:5] == ["engine closed", "trainer closed"]


@pytest.mark.parametrize(("concurrency", "is_refused"), [("2001", True), ("2000", False)])
async def test_more_episodes_than_there_are_tokens_for_are_refused(
    tiny_folder: Path,
    tmp_path: Path,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: str,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(LoggedEngine, "capacity_tokens", 4000, raising=False)
    plan = served_plan(tmp_path, "--rollout.concurrency", concurrency)
    if not is_refused:
        await (await build_parts(plan, tiny_folder, train=False)).aclose()
        return
    with pytest.raises(ConfigError, match=r"rollout\.concurrency: got 2001 .* holds 4000 tokens"):
        await build_parts(plan, tiny_folder, train=False)
    assert log[-1] == "engine closed"


async def test_each_part_is_closed_although_another_one_fails(tiny_folder: Path) -> None:
    class Failing(LoggedTrainer):
        def close(self) -> None:
            super().close()
            raise ConfigError("the disk is full")

    log = Log()
    parts = make_parts(tiny_folder, log, Failing(log), configuration())
    closed: list[str] = []
    parts.services.close = lambda: closed.append("services")  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="disk is full"):
        await parts.aclose()
    assert log == ["engine closed", "trainer closed"]
    assert closed == ["services"]


async def test_a_scripted_agent_plays_through_the_same_evaluation(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = configuration("--runs-dir", str(tmp_path))
    plan = make_plan(config, train=False, scripted=True)
    parts: Parts = scripted_parts(plan, tiny_folder, make_agent("oracle", plan.envs, config.seed))
    try:
        result, collected = await evaluate(parts, step=3, on_group=lambda done, total: None)
    finally:
        await parts.aclose()
    assert (result.episodes, result.success) == (2, 1.0)
    assert {episode.split for episode in collected.episodes} == {"heldout"}
