"""What a checkpoint holds beside the trainer's own state."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from agentrl.orchestration import store
from agentrl.orchestration.config import CheckpointConfig
from agentrl.orchestration.fingerprints import Fingerprints
from agentrl.orchestration.store import RunStore
from agentrl.rollout import EnvSource, RolloutConfig
from agentrl.rollout.sampler import TaskSampler
from agentrl.run_dir import EventsWriter, RunDirectory

STATEFUL = f"{Path(__file__).parents[3]}/examples/extending/sampler_with_state.py:AtRandom"


class Keeps:
    """Writes the state as the trainer's checkpoint does, and nothing else."""

    def save(self, folder: Path, *, step: int, state: Mapping[str, Any], **_: object) -> None:
        (folder / f"step-{step}").mkdir(parents=True)
        (folder / f"step-{step}" / "state.json").write_bytes(orjson.dumps(state))

    def load(self, folder: Path) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", orjson.loads((folder / "state.json").read_bytes()))


def test_the_state_of_a_sampler_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator's state has numbers above 64 bits."""

    def newest(folder: Path) -> Path:
        return folder / "step-2"

    monkeypatch.setattr(store, "latest_valid", newest)
    config = RolloutConfig.model_validate({"sampler": STATEFUL, "tasks_per_step": 3})
    before, after = (TaskSampler(config, [EnvSource(1.0, 9)], seed=5) for _ in range(2))
    for _ in range(2):
        before.draw()
    assert max(len(digits) for digits in re.findall(r"\d+", before.state(2))) > 20
    (tmp_path / "base").mkdir()
    with (
        RunDirectory.create(tmp_path, "one", prefix="x") as directory,
        EventsWriter(directory.events) as events,
    ):
        kept = RunStore(
            directory,
            base_model=tmp_path / "base",
            config=CheckpointConfig(),
            events=events,
            prints=Fingerprints(data={}, sources={}),
        )
        trainer: Any = Keeps()
        kept.save(trainer, 2, 1, sampler=before.state(2), recipe='{"kl": 0.5}', groups="[]")
        step, version, state, recipe, groups = kept.restore(trainer)
        kept.close()
    assert (step, version, recipe, groups) == (2, 1, '{"kl": 0.5}', "[]")
    after.load(step, state)
    assert after.draw() == before.draw()
