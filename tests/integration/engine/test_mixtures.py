"""The blocks of many architectures that choose experts: noted and replayed, or refused by name."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from pathlib import Path
from typing import Any

import orjson
import peft
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import experts_per_token
from agentrl.engine.local.routing_replay import mixtures, recorded_experts, routed
from agentrl.engine.servers.install import Installation
from agentrl.engine.sglang.server import launch_command
from agentrl.errors import ConfigError
from tests.one_thread import one_thread
from tests.unit.trainer.batches import tiny_model

__all__ = ["one_thread"]
NUM_EXPERTS, CHOSEN, LAYERS, VOCAB = 8, 3, 2, 61
"""An odd number is chosen, so that the last choice is between the two of a pair."""
_SMALL = {
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "num_experts_per_tok": CHOSEN,
    "initializer_range": 0.3,
}
_MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_GROUPS = {"n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 0}
_OWN: dict[str, dict[str, Any]] = {
    "afmoe": {"num_experts": 8, "num_dense_layers": 0},
    "aria_text": {"moe_num_experts": 8, "moe_topk": CHOSEN},
    "cohere2_moe": {"num_experts": 8},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": LAYERS,
        "max_seq_len": 128,
        "attn_config": {"kv_n_heads": 4, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {
            "hidden_size": 32,
            "ffn_hidden_size": 24,
            "moe_num_experts": 8,
            "moe_top_k": CHOSEN,
        },
    },
    "deepseek_v2": {
        "n_routed_experts": 8,
        "topk_method": "group_limited_greedy",
        **_MLA,
        **_GROUPS,
    },
    "deepseek_v3": {"n_routed_experts": 8, **_MLA, **_GROUPS},
    "dots1": {"n_routed_experts": 8, **_GROUPS},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": CHOSEN, "moe_layer_start_index": 0},
    "exaone_moe": {"num_experts": 8, **_GROUPS},
    "flex_olmo": {"num_experts": 8},
    "glm4_moe": {"n_routed_experts": 8, **_GROUPS},
    "glm4_moe_lite": {"n_routed_experts": 8, "mlp_layer_types": ["sparse"] * 2, **_MLA, **_GROUPS},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16},
    "granitemoe": {"num_local_experts": 8},
    "granitemoeshared": {"num_local_experts": 8, "shared_intermediate_size": 24},
    "hunyuan_v1_moe": {"num_experts": 8, "head_dim": 8, "moe_topk": CHOSEN},
    "jetmoe": {"num_local_experts": 8, "num_key_value_heads": 2, "kv_channels": 12},
    "llama4_text": {"num_local_experts": 8, "intermediate_size_mlp": 48},
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 8},
    "qwen2_moe": {"num_experts": 8, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {"num_experts": 8},
    "solar_open": {"n_routed_experts": 8, **_GROUPS},
}


def mixture(kind: str, **settings: object) -> PreTrainedModel:
    """Random, with routers that have two equal halves up to rounding."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**_SMALL, **_OWN.get(kind, {}), **settings})
    kinds: Any = AutoModelForCausalLM
    model: PreTrainedModel = kinds.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if len(weight) == NUM_EXPERTS and weight.ndim < 3 and "experts" not in name:
                half = 0.3 * torch.randn_like(weight[: NUM_EXPERTS // 2])
                weight.copy_(torch.cat([half, half + 1e-8 * torch.randn_like(half)]))
    return model


def scores(model: PreTrainedModel) -> Tensor:
    ids = torch.arange(3, 43)[None] % VOCAB
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.log_softmax(-1)


def nudge(_: nn.Module, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What another order of sums would change."""

    def noisy(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        return value * (1 + 1e-6 * torch.randn_like(value)) if floats else value

    return tuple(map(noisy, arguments)), {name: noisy(value) for name, value in kwargs.items()}


@pytest.mark.parametrize("kind", sorted(_OWN))
def test_noted_experts_are_replayed(kind: str) -> None:
    """Also where the choice is limited to groups; nothing of a class's name is asked for."""
    model = mixture(kind)
    assert len(mixtures(model)) == (2 * LAYERS if kind == "jetmoe" else LAYERS)
    with torch.no_grad():
        with routed(model) as noted:
            engine = scores(model)
        assert {tuple(n.shape) for n in noted} == {(40, CHOSEN)}
        blocks = mixtures(model).values()
        hooks = [b.register_forward_pre_hook(nudge, with_kwargs=True) for b in blocks]
        free = float((scores(model) - engine).abs().max())
        with routed(model, noted) as replayed:
            gap = float((scores(model) - engine).abs().max())
        for hook in hooks:
            hook.remove()
    assert all(torch.equal(a, b) for a, b in zip(noted, replayed, strict=True))
    assert free > 1e-3
    assert gap < 1e-4


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "gpt_oss", "llama4_text"])
def test_the_router_is_trained_as_by_the_models_own_code(kind: str) -> None:
    model = mixture(kind)
    gradients: list[dict[str, Tensor]] = []
    chosen: list[Tensor] | None = None
    for _ in range(2):
        with routed(model, chosen) as noted:
            torch.autograd.backward(scores(model)[:, 7].sum())
        chosen = noted
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    assert any(len(g) == NUM_EXPERTS and g.any() for g in gradients[0].values())


def test_adapters_hide_no_mixture() -> None:
    model = mixture("qwen3_moe")
    names = list(mixtures(model))
    settings = peft.LoraConfig(target_parameters=["gate_up_proj"], target_modules=["q_proj"], r=2)
    peft.inject_adapter_in_model(settings, model)
    assert list(mixtures(model)) == names == ["model.layers.0.mlp", "model.layers.1.mlp"]


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("phimoe", {"num_local_experts": 8, "num_experts_per_tok": 2}, r"0\.mlp \(Phimoe.*topk"),
        ("doge", {"is_moe": True, "num_experts": 16}, r"in no block that is known"),
    ],
)
def test_another_way_to_choose_is_refused_by_name(
    kind: str, settings: dict[str, object], named: str
) -> None:
    model = mixture(kind, **settings)
    with pytest.raises(ConfigError, match=named), torch.no_grad(), routed(model):
        scores(model)


@pytest.mark.parametrize("kind", ["qwen2_moe", "qwen3_moe", "granitemoehybrid"])
def test_a_dense_model_is_left_alone(kind: str) -> None:
    """Though its settings speak of experts, of as many as some matrices have rows."""
    settings: dict[str, dict[str, object]] = {
        "qwen2_moe": {"num_experts": 48, "mlp_only_layers": [0, 1]},
        "qwen3_moe": {
            "num_experts": 16,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "mlp_only_layers": [0, 1],
        },
        "granitemoehybrid": {
            "num_local_experts": 0,
            "layer_types": ["attention"] * LAYERS,
            "mamba_n_heads": 8,
        },
    }
    for model in (mixture(kind, **settings[kind]), tiny_model()):
        forwards = {id(m): m.forward for m in model.modules()}
        with routed(model) as noted:
            assert {id(m): m.forward for m in model.modules()} == forwards
            model(input_ids=torch.arange(9)[None])
        assert noted == []


@pytest.mark.parametrize(
    ("content", "number"),
    [
        ({"num_experts": 8, "num_experts_per_tok": 2}, 2),
        ({"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3}, 3),
        ({"text_config": {"num_local_experts": 8, "num_experts_per_tok": 1}}, 1),
        ({"moe_num_experts": [8, 8], "moe_k": 6}, 6),
        ({"num_experts": 8, "moe_topk": [2, 2]}, 2),
        ({"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}}, 4),
        ({"num_experts": 8, "top_k_experts": 2}, 2),
        ({"num_local_experts": 0, "num_experts_per_tok": 8}, 0),
        ({"n_routed_experts": None, "num_experts_per_tok": None}, 0),
        ({"hidden_size": 8, "id2label": {"0": "experts"}}, 0),
    ],
)
def test_a_server_is_asked_for_the_experts_that_the_folder_names(
    tmp_path: Path, content: dict[str, object], number: int
) -> None:
    (tmp_path / "config.json").write_bytes(orjson.dumps(content))
    assert experts_per_token(tmp_path) == number


@pytest.mark.parametrize(("dense", "number"), [([], 3), ([0], 3), ([0, 1], 0)])
def test_a_server_records_the_experts_that_the_model_has(
    tmp_path: Path, dense: list[int], number: int
) -> None:
    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=4,
        num_experts_per_tok=3,
        mlp_only_layers=dense,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    assert recorded_experts(tmp_path) == number
    settings = EngineConfig(dtype="float32")
    where = Installation(folder=tmp_path, flavour="gpu")
    flags = launch_command(where, settings, tmp_path, "127.0.0.1", 1)
    assert ("--enable-return-routed-experts" in flags) == (number > 0)


def test_a_mixture_that_does_not_say_how_many_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(orjson.dumps({"num_experts": 8}))
    with pytest.raises(ConfigError, match="not how many a token goes to"):
        experts_per_token(tmp_path)
