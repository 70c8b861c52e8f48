"""Bad input that only a model's files or the machine can show: one sentence each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
import shutil
from pathlib import Path

import pytest
import torch

from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.model_files import checked_codec
from agentrl.orchestration.preflight import make_plan
from agentrl.trainer import TrainerConfig
from agentrl.trainer import trainer as module
from agentrl.trainer.device import OutOfMemory
from agentrl.trainer.fsdp import use_liger
from agentrl.trainer.trainer import LocalTrainer
from tests.unit.trainer.batches import on_policy, random_segments, tiny_model


def test_the_tokenizer_of_another_model(tmp_path: Path) -> None:
    shutil.copytree(resolve_model("tiny"), tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 300}))
    plan = make_plan(load_run_config(flags=["--env", "calculator"]).config)
    with pytest.raises(ConfigError, match=r"ids, but the model knows 300: it is another model's"):
        checked_codec(plan, tmp_path / "model")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("the device has none left"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_costs_no_weight(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    trainer = LocalTrainer(model, TrainerConfig(), total_steps=2)
    batch = on_policy(model, random_segments((9, 12)), advantages=(1, -1))
    before = [p.clone() for p in model.parameters()]

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "policy_scores", fail)
        with pytest.raises(OutOfMemory, match=r"trainer\.token_budget below 4096"):
            trainer.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert trainer.update(batch).step == 1


def test_eight_bits_need_a_library() -> None:
    with pytest.raises(ConfigError, match="neither bitsandbytes nor torchao is installed"):
        LocalTrainer(tiny_model(), TrainerConfig(optimizer="adamw8bit"), total_steps=1)


def test_liger_needs_an_accelerator_and_the_library() -> None:
    with pytest.raises(ConfigError, match="on a CPU, but Liger's kernels run on accelerators"):
        LocalTrainer(tiny_model(), TrainerConfig(liger=True), total_steps=1)
    with pytest.raises(ConfigError, match="liger-kernel is not installed"):
        use_liger(tiny_model(), torch.device("meta"))
