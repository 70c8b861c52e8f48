"""An engine and a trainer that take turns on one device give the same run."""

import json
from pathlib import Path

import pytest
import torch

from agentrl.orchestration.budget import memory_fit
from agentrl.orchestration.load import load_run_config
from agentrl.trainer import TrainerConfig
from agentrl.trainer.device import CPU
from agentrl.trainer.trainer import LocalTrainer
from tests.preloaded import Preloaded
from tests.unit.trainer.batches import on_policy, random_segments, tiny_model

ENV = f"{Path(__file__).parents[2] / 'e2e' / 'digits_env.py'}:Digits"
START = [
    *("--env", ENV, "--steps", "2", "--deterministic", "--threads", "1"),
    *("--rollout.tasks-per-step", "3", "--group-size", "4", "--rollout.max-new-tokens", "12"),
]


@pytest.mark.parametrize("publish", ["merged", "adapter"])
def test_taking_turns_changes_nothing(publish: str, tmp_path: Path, preloaded: Preloaded) -> None:
    lora = ["--trainer.lora.rank", "4", "--trainer.lora.publish", publish, "--lr", "1e-2"]
    found: list[list[dict[str, float]]] = []
    for name, more in (("alone", []), ("turns", ["--engine.share-device"])):
        done = preloaded.run(["train", *START, *lora, "--name", name, *more], tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        found.append([json.loads(line) for line in lines])
    for alone, turns in zip(*found, strict=True):
        for key in ("reward", "loss", "grad_norm", "gap_max", "updates"):
            assert alone[key] == turns[key], key


def test_the_optimizers_state_goes_and_comes_back() -> None:
    model = tiny_model()
    batch = on_policy(
        model, random_segments([9, 7]), advantages=[1, -1], turn_rewards=[(1.0,), (0.0,)]
    )
    trainer = LocalTrainer(model, TrainerConfig(algorithm="ppo", lr=1e-2), total_steps=3)
    trainer.update(trainer.with_outputs(batch, ["values"]))
    assert trainer.critic is not None
    optimizers = (trainer.optimizer, trainer.critic.optimizer)

    def moments() -> list[torch.Tensor]:
        return [s["exp_avg"] for o in optimizers for s in o.state.values()]

    before = [moment.clone() for moment in moments()]
    trainer.release_memory()
    assert all(moment.device == CPU for moment in moments())
    trainer.reclaim_memory()
    assert all(torch.equal(a, b) for a, b in zip(before, moments(), strict=True))


def test_the_larger_turn_is_what_is_needed() -> None:
    flags = ["--env", "calculator", "--model", "tiny", "--rollout.max-context-tokens", "512"]

    def parts(*more: str) -> dict[str, int]:
        return dict(memory_fit(load_run_config(flags=[*flags, *more]).config, "80GB").parts)

    both, turns = parts(), parts("--engine.share-device", "true")
    assert sum(turns.values()) < sum(both.values())
    assert turns["weights"] == both["weights"]
    assert turns["cache"] == 0 or turns["activations"] == 0
