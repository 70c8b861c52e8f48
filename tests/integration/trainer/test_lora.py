"""LoRA: only adapters are trained, and the engine gets what PEFT's own merge gives."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch, transformers and peft are typed in part only.

import weakref
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.errors import ConfigError
from agentrl.trainer import KlConfig, LoraConfig, RatioBandConfig, TrainerConfig, lora
from agentrl.trainer.export import export_hf
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import EpisodeSession, Sampling
from tests.integration.engine.test_mixtures import mixture
from tests.unit.trainer.batches import (
    batch_of,
    on_policy,
    plain_logprobs,
    random_segments,
    tiny_model,
)

IDS = torch.arange(9)[None]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def config(**given: object) -> TrainerConfig:
    return TrainerConfig(
        lr=1e-2,
        lora=LoraConfig.model_validate({"rank": 4, **given}),
        kl=KlConfig(coef=0.1),
        ratio_band=RatioBandConfig(mean=1e9, max=1e9),
    )


def make_trainer(**given: object) -> LocalTrainer:
    return LocalTrainer(tiny_model(), config(**given), total_steps=6)


def train(trainer: LocalTrainer, first: int, last: int) -> None:
    for step in range(first, last):
        segments = random_segments((12, 20, 7, 31), seed=step)
        batch = trainer.with_outputs(batch_of(segments, advantages=(1, -1, 2, -2)), ["reference"])
        assert trainer.update(batch).skipped is None


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(input_ids=IDS).logits
    return result


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_only_adapters_are_trained_and_the_merged_weights_are_pefts(tmp_path: Path) -> None:
    base = tiny_model()
    before = {name: p.clone() for name, p in base.named_parameters()}
    trainer = make_trainer(targets="q_proj, v_proj,down_proj")
    train(trainer, 0, 2)
    trained = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    assert len(trained) == 2 * 2 * 3
    merged = dict(trainer.weights().named_tensors())
    assert merged.keys() == before.keys()
    changed = {
        name.split(".")[-2] for name in merged if not torch.equal(merged[name], before[name])
    }
    assert changed == {"q_proj", "v_proj", "down_proj"}
    # PEFT's own model from the exported adapter, merged by PEFT.
    base.save_pretrained(tmp_path / "base")
    folder = export_hf(trainer.model, tmp_path / "base", tmp_path / "adapter", adapter=True)
    loaded = PeftModel.from_pretrained(base, folder)
    torch.testing.assert_close(logits(loaded), logits(trainer.model))
    own = dict(loaded.merge_and_unload().named_parameters())
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, own[name], rtol=1e-6, atol=1e-7)
    whole = export_hf(trainer.model, tmp_path / "base", tmp_path / "whole")
    exported = AutoModelForCausalLM.from_pretrained(whole)
    torch.testing.assert_close(logits(exported), logits(trainer.model))


def test_the_reference_is_the_base_without_a_copy() -> None:
    model = tiny_model()
    batch = on_policy(model, random_segments((9, 12)), advantages=(1, -1))
    start = plain_logprobs(tiny_model(), batch).detach()
    trainer = LocalTrainer(model, config(), total_steps=9)
    batch = trainer.with_outputs(batch, ["reference"])
    stats = [trainer.update(batch) for _ in range(4)]
    assert stats[0].kl == pytest.approx(0, abs=1e-6)
    gap = start - plain_logprobs(model, batch).detach()
    with torch.no_grad():
        kl = (torch.expm1(gap) - gap)[torch.from_numpy(batch.mask_N)].mean()
    assert trainer.update(batch).kl == pytest.approx(float(kl), rel=1e-3)
    assert kl > 1e-4


def test_a_checkpoint_holds_the_adapters_alone_and_resumes(tmp_path: Path) -> None:
    straight = make_trainer()
    train(straight, 0, 1)
    path = straight.save(tmp_path, step=1, state={"base": "b"})
    train(straight, 1, 3)
    resumed = make_trainer()
    assert resumed.load(path) == {"base": "b"}
    train(resumed, 1, 3)
    for (name, ours), (_, theirs) in zip(
        resumed.weights().named_tensors(), straight.weights().named_tensors(), strict=True
    ):
        assert torch.equal(ours, theirs), name
    held = FileSystemReader(path / "weights").read_metadata().state_dict_metadata
    assert len(held) > 10
    assert not [name for name in held if name.startswith("model.") and "lora_" not in name]


@pytest.mark.parametrize("publish", ["merged", "adapter"])
async def test_the_local_engine_samples_with_the_adapters(publish: str) -> None:
    trainer = make_trainer()
    model = trainer.model
    if publish == "adapter":
        trainer = make_trainer(publish=publish)
        model = trainer.model
    else:
        model = tiny_model()
    engine = LocalEngine(model, EngineConfig(share_weights=publish == "adapter"))
    train(trainer, 0, 2)
    await engine.pause()
    await engine.update_weights(trainer.weights(), 1)
    await engine.resume()
    completion = await engine.generate([1, 2, 3], Sampling(max_new_tokens=1), EpisodeSession("a"))
    with torch.no_grad():
        row = trainer.model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1].log_softmax(-1)
    assert completion.logprobs_T[0] == pytest.approx(float(row[completion.ids_T[0]]), abs=1e-5)
    await engine.aclose()


async def test_merged_tensors_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = weakref.WeakSet[Tensor]()
    most: list[int] = []
    merge = lora.merged

    def counted(layer: LoraLayer, leaf: str, values: Tensor) -> Tensor:
        tensor = merge(layer, leaf, values)
        made.add(tensor)
        most.append(len(made))
        return tensor

    monkeypatch.setattr("agentrl.trainer.weights.merged", counted)
    engine = LocalEngine(tiny_model(), EngineConfig(share_weights=False))
    await engine.update_weights(make_trainer().weights(), 1)
    await engine.aclose()
    assert len(most) == 2 * 2 * 7  # checked, then written
    assert max(most) <= 2  # the one before it goes when the next one is there


def test_targets_that_match_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'q_porj' matches no linear .* did you mean q_proj\?"):
        make_trainer(targets="v_proj,q_porj")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gate_proj", r"part of model.layers.0.mlp.experts.gate_up_proj, experts that are stacked"),
        ("experts", r"part of model.layers.0.mlp.experts.gate_up_proj, experts that are stacked"),
        ("down_proj", r"part of model.layers.0.mlp.experts.down_proj, experts that are stacked"),
        ("gate", r": model.layers.0.mlp.gate gets no adapter"),
        ("embed_tokens", r": model.embed_tokens gets no adapter"),
        ("lm_head", r": lm_head gets no adapter"),
        (".*attn.*", r"Qwen3MoeForCausalLM; expected"),
        ("", r"Qwen3MoeForCausalLM; expected"),
    ],
)
def test_what_gets_no_adapter_is_said(target: str, said: str) -> None:
    model = mixture("qwen3_moe")
    with pytest.raises(ConfigError, match=said) as caught:
        lora.add_adapters(model, LoraConfig(rank=2, targets=f"q_proj,{target}"))
    assert "expected all-linear or some of k_proj, o_proj, q_proj, v_proj" in str(caught.value)


def test_what_a_run_leaves_frozen_is_said(tmp_path: Path) -> None:
    mixture("qwen3_moe").save_pretrained(tmp_path / "moe")
    reach = lora.adapter_reach(tmp_path / "moe", LoraConfig(rank=2))
    assert reach.experts
    assert "model.layers.*.mlp.experts.gate_up_proj (24,576)" in reach.text
    assert "model.layers.*.mlp.experts.down_proj (12,288)" in reach.text
    assert "model.layers.*.mlp.gate (512)" in reach.text
    assert "adapters on 8 of " in reach.text
    tiny_model().save_pretrained(tmp_path / "dense")
    reach = lora.adapter_reach(tmp_path / "dense", LoraConfig(rank=2))
    assert not reach.experts
    trained = sum(p.numel() for p in make_trainer(rank=2).model.parameters() if p.requires_grad)
    assert reach.text.startswith(f"LoRA trains {trained:,} weights, in adapters on 14 of 15 matri")
    assert reach.text.endswith("weights have none: model.embed_tokens (992)")


def test_routers_that_are_called_like_a_layer_are_left_alone() -> None:
    """The gated attention of one architecture has a `gate`, its mixture another."""
    model = mixture("qwen2_moe")
    lora.add_adapters(model, LoraConfig(rank=2))
    adapted = lora.adapted_layers(model)
    assert adapted
    assert not any(name.endswith("mlp.gate") for name in adapted)
    assert torch.isfinite(model(input_ids=IDS).logits).all()


def test_a_model_without_linear_layers_is_refused() -> None:
    small = GPT2Config(n_embd=32, n_head=4, n_layer=1, n_positions=32, vocab_size=31)
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel has no linear layer that can get"):
        lora.add_adapters(GPT2LMHeadModel(small), LoraConfig(rank=2))


def test_a_rank_beyond_every_layer_is_refused() -> None:
    make_trainer(rank=32)
    with pytest.raises(ConfigError, match=r"trainer\.lora\.rank: got 33, expected at most 32"):
        make_trainer(rank=33)
