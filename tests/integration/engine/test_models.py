"""What a model's code asks for is computed, or the model is refused at the start."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.errors import ConfigError, RunError
from agentrl.trainer import TrainerConfig
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import EpisodeSession, Sampling
from tests.integration.engine.plain import random_llama
from tests.one_thread import one_thread
from tests.unit.trainer.batches import on_policy, random_segments

__all__ = ["one_thread"]
SMALL: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
BORDER = 64
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": BORDER,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}


def small(kind: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **settings})
    kinds: Any = AutoModelForCausalLM
    model: PreTrainedModel = kinds.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(spread * torch.randn_like(parameter))
    model.train(False)
    return model


def refused(model: PreTrainedModel, match: str, *, longest: int = 0) -> None:
    """By the engine and by the trainer."""
    with pytest.raises(ConfigError, match=match):
        LocalEngine(model, EngineConfig(context_length=longest))
    with pytest.raises(ConfigError, match=match):
        LocalTrainer(copy.deepcopy(model), TrainerConfig(), total_steps=1, longest=longest or None)


async def engine_gap(model: PreTrainedModel, *, longest: int = 0) -> float:
    """Of a long and a short episode in one batch from a model's own code, each row alone."""
    engine = LocalEngine(model, EngineConfig(prefill_tokens=16, context_length=longest))
    gaps: list[float] = []
    for number, length in enumerate((5, engine.context_length - 12, engine.context_length - 12)):
        ids = np.random.default_rng(length).integers(31, size=length).tolist()
        for turn in range(2):
            sampling = Sampling(max_new_tokens=5, seed=number)
            found = await engine.generate(ids, sampling, EpisodeSession(f"{number}"))
            ids += found.ids_T.tolist()
            own = own_logprobs(model, torch.tensor(ids))[-len(found.ids_T) :]
            gaps.append(float(np.abs(own.numpy() - found.logprobs_T).max()))
            ids += [turn]
    await engine.aclose()
    return max(gaps)


def own_logprobs(model: PreTrainedModel, ids_T: Tensor) -> Tensor:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits_TV, dim=-1).gather(1, ids_T[1:, None])[:, 0]


def trainer_gap(model: PreTrainedModel) -> float:
    """Of a batch of short and long rows from the model's own code."""
    batch = on_policy(model, random_segments((90, 4, 40, 90)), advantages=(1, -1, 1, -1))
    config = TrainerConfig.model_validate({"ratio_band": {"mean": 1e9, "max": 1e9}})
    return LocalTrainer(copy.deepcopy(model), config, total_steps=1).update(batch).gap_max


async def test_factors_that_depend_on_the_pass_are_refused_beyond_their_border() -> None:
    model = small("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=BORDER)
    refused(model, f"nats in the row at .* set engine.context_length to at most {BORDER}")
    assert await engine_gap(model, longest=BORDER) < 1e-4
    trainer = LocalTrainer(model, TrainerConfig(), total_steps=1, longest=BORDER)
    batch = on_policy(model, random_segments((2 * BORDER, 9)), advantages=(1, -1))
    with pytest.raises(RunError, match=f"tokens, but the context holds {BORDER}"):
        trainer.update(batch)


def test_factors_that_grow_with_the_longest_row_are_refused_beyond_the_context() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = small("llama", rope_parameters=dynamic)
    assert trainer_gap(model) < 1e-4
    batch = on_policy(model, random_segments((250, 9)), advantages=(1, -1))
    with pytest.raises(RunError, match="tokens, but the context holds 128"):
        LocalTrainer(model, TrainerConfig(), total_steps=1).update(batch)


MIXED = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "head_dim": 8,
}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt_oss", {**MIXED, "num_local_experts": 4, "num_experts_per_tok": 2}),
        ("gemma3_text", MIXED),
        ("mistral", {"sliding_window": 40}),
        ("deepseek_v3", {**LATENT, "first_k_dense_replace": 2}),
        ("granite", {"logits_scaling": 4.0}),
    ],
)
async def test_sinks_windows_wide_keys_and_scaled_logits(kind: str, settings: Any) -> None:
    model = small(kind, **settings)
    assert await engine_gap(model) < 1e-4
    assert trainer_gap(model) < 1e-4


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("gemma2", MIXED, "Gemma2Attention asks for attention with softcap, which"),
        ("qwen3_next", {**LINEAR, "head_dim": 8}, "interface 1 times, in 1 of its 2 layers"),
        ("falcon_h1", {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8}, "otherwise than"),
        ("stablelm", {}, "StableLmAttention does not get what its model is called with"),
        ("bloom", {}, "0 times, in 0 of its 2 layers"),
        (
            "llama4_text",
            {"head_dim": 8, "num_local_experts": 2, "attention_chunk_size": 40},
            "more than 40 tokens by a mask that is no sliding window",
        ),
        (
            "llama4_text",
            {"head_dim": 8, "num_local_experts": 2, "no_rope_layers": [1, 0]},
            "scales queries by how many tokens of a pass are before them",
        ),
    ],
)
def test_what_is_not_computed_is_refused(kind: str, settings: Any, reason: str) -> None:
    refused(small(kind, **settings), reason)


class Mean(nn.Module):
    """The mean of what came before, in the place of attention."""

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        counts = torch.arange(1, hidden_states.shape[1] + 1)[:, None]
        return hidden_states.cumsum(1) / counts, None


def test_a_layer_that_keeps_a_state_of_its_own_is_refused() -> None:
    model = random_llama()
    setattr(model.model.layers[1], "self_attn", Mean())  # noqa: B010
    refused(model, "called transformers' attention interface 1 times, in 1 of its 2 layers")


def test_noise_in_training_is_refused() -> None:
    model = small("mixtral", num_local_experts=4, router_jitter_noise=0.5)
    LocalEngine(model, EngineConfig())
    with pytest.raises(ConfigError, match="set router_jitter_noise to 0"):
        LocalTrainer(model, TrainerConfig(), total_steps=1)


class Windowed(LlamaAttention):
    """Asks for a window in the call, but not in the mask."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **{**kwargs, "sliding_window": 20})


def test_a_window_that_the_mask_does_not_have_is_refused() -> None:
    model = small("llama")
    for module in model.modules():
        if isinstance(module, LlamaAttention):
            module.__class__ = Windowed
    refused(model, "more than 20 tokens by a mask that is no sliding window")


def test_rounding_to_fewer_bits_is_no_difference_but_another_factor_is() -> None:
    half = EngineConfig(dtype="bfloat16", share_weights=False)
    LocalEngine(small("gpt_oss", **MIXED, num_local_experts=4, num_experts_per_tok=2), half)
    model = small("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=BORDER)
    with pytest.raises(ConfigError, match=f"set engine.context_length to at most {BORDER}"):
        LocalEngine(model, half)
