"""`agentrl export`: what transformers and PEFT load is what was trained."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch, transformers and peft are typed in part only.

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.export import export_run
from agentrl.trainer import LoraConfig, TrainerConfig
from agentrl.trainer.export import export_hf
from agentrl.trainer.lora import adapted_layers, adapter_config, add_adapters
from agentrl.trainer.trainer import LocalTrainer
from benchmarks.models import make_model
from tests.unit.trainer.batches import batch_of, random_segments

RUN = """
model = "tiny"
[[env]]
name = "calculator"
[trainer]
lr = 1e-2
lora.rank = {rank}
"""


@dataclass(frozen=True, slots=True)
class Trained:
    runs: Path
    logits: Tensor

    @property
    def checkpoint(self) -> Path:
        return self.runs / "one" / "checkpoints" / "step-000003"


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(input_ids=torch.arange(9)[None]).logits
    return result


@pytest.fixture(scope="module", params=[0, 4])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    rank: int = request.param
    runs = tmp_path_factory.mktemp("runs")
    base = resolve_model("tiny")
    (runs / "one").mkdir()
    (runs / "one" / "config.toml").write_text(RUN.format(rank=rank))
    (runs / "one" / "metrics.jsonl").write_text('{"step":3,"success":0.5,"eval/success":0.25}\n')
    config = TrainerConfig(lr=1e-2, lora=LoraConfig(rank=rank))
    trainer = LocalTrainer(load_model(base), config, total_steps=1)
    trainer.supervised_update(batch_of(random_segments((9, 12))))
    made = Trained(runs, logits(trainer.model))
    trainer.save(made.checkpoint.parent, step=3, state={"base": str(base)})
    return made


def test_a_run_becomes_a_model_that_transformers_loads(trained: Trained, tmp_path: Path) -> None:
    out = export_run("one", tmp_path / "out", adapter=False, runs_dir=trained.runs)
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(out)), trained.logits, rtol=1e-5, atol=1e-5
    )
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert generation["do_sample"] is True
    card = (out / "README.md").read_text()
    for text in (
        "| environment | calculator |",
        "reinforce",
        "after step 3: 0.250",
        "| steps | 3 |",
    ):
        assert text in card
    again = export_run(str(trained.checkpoint), tmp_path / "b", adapter=False, runs_dir=tmp_path)
    assert (again / "README.md").read_text() == card
    with pytest.raises(ConfigError, match="is there already"):
        export_run("one", out, adapter=False, runs_dir=trained.runs)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", ["apertus", "deepseek_v3", "qwen3_moe"])
def test_all_that_the_files_of_a_model_hold_is_exported(
    kind: str, rank: int, tmp_path: Path
) -> None:
    """Also what is no weight: Apertus and the routers of DeepSeek-V3 have stored buffers."""
    model: Any = make_model(kind)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in model.state_dict():
                buffer.uniform_(0.5, 1.5)
    lora = LoraConfig(rank=rank)
    trainer = LocalTrainer(model, TrainerConfig(lr=1e-2, lora=lora), total_steps=1)
    trainer.supervised_update(batch_of(random_segments((9, 12))))
    out = export_hf(trainer.model, resolve_model("tiny"), tmp_path / "out")
    torch.testing.assert_close(logits(load_model(out)), logits(trainer.model.eval()))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_an_adapter_is_what_peft_loads(trained: Trained, tmp_path: Path) -> None:
    if "lora.rank = 0" in (trained.runs / "one" / "config.toml").read_text():
        with pytest.raises(ConfigError, match="no adapter"):
            export_run("one", tmp_path / "out", adapter=True, runs_dir=trained.runs)
        return
    out = export_run("one", tmp_path / "out", adapter=True, runs_dir=trained.runs)
    assert not (out / "model.safetensors").exists()
    assert (out / "generation_config.json").exists()  # the card speaks of it
    loaded: nn.Module = AutoPeftModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(logits(loaded), trained.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("deepseek_v3", "all-linear"),
        ("ernie4_5_moe", "q_proj,gate_proj"),
        ("glm4_moe_lite", "shared_experts.down_proj"),
        ("hunyuan_v1_moe", "all-linear"),
        ("qwen2_moe", "all-linear"),
    ],
)
def test_the_adapter_of_a_mixture_is_where_it_was_trained(
    kind: str, targets: str, tmp_path: Path
) -> None:
    """PEFT takes names of layers beside stacked experts for parts of the experts."""
    model: Any = make_model(kind)
    model.save_pretrained(tmp_path / "base")
    add_adapters(model, LoraConfig(rank=2, targets=targets))
    with torch.no_grad():
        for layer in adapted_layers(model).values():
            layer.lora_B.get_parameter("default.weight").normal_(std=0.3)
    export_hf(model, resolve_model("tiny"), tmp_path / "out", adapter=True)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    plain = logits(base)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)
    assert (logits(loaded) - plain).abs().max() > 0.1


def no_parts(*_: object) -> set[str]:
    return set()


def test_an_adapter_that_peft_loads_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = make_model("deepseek_v3")
    add_adapters(model, LoraConfig(rank=2))
    monkeypatch.setattr("agentrl.trainer.export.parts_of_experts", no_parts)
    with pytest.raises(RunError, match=r"PEFT would not load the adapter .* without --adapter"):
        export_hf(model, resolve_model("tiny"), tmp_path / "out", adapter=True)


def test_a_server_gets_no_adapter_that_it_would_put_elsewhere(tmp_path: Path) -> None:
    mixture: Any = make_model("deepseek_v3")
    mixture.save_pretrained(tmp_path)
    adapter_config(tmp_path, LoraConfig(rank=2))
    adapter_config(tmp_path, LoraConfig(rank=2, targets="o_proj"), served=True)
    with pytest.raises(ConfigError, match=r"publish: got adapter .* down_proj, .* use merged"):
        adapter_config(tmp_path, LoraConfig(rank=2), served=True)


def test_what_cannot_be_exported_is_said(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.toml").write_text(RUN.format(rank=0))
    with pytest.raises(ConfigError, match="has no whole checkpoint"):
        export_run("empty", tmp_path / "out", adapter=False, runs_dir=tmp_path)
    state = trained.checkpoint / "state.json"
    before = state.read_text()
    try:
        state.write_text(before.replace("tiny", "gone"))
        with pytest.raises(RunError, match="is not there any more"):
            export_run(str(trained.checkpoint), tmp_path / "out", adapter=False, runs_dir=tmp_path)
    finally:
        state.write_text(before)
