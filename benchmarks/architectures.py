"""A small configuration for each causal architecture of transformers that is tried.

A value is the `model_type` and what differs from `COMMON`. Windows, chunks and the lengths at which
factors change are short, so that rows of a hundred tokens cross them.
"""

from collections.abc import Mapping
from typing import Any

COMMON: Mapping[str, Any] = {
    "vocab_size": 97,
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
_WIDTH = {"head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_WINDOW = {"sliding_window": 16}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_GROUPS = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 32,
}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

ARCHITECTURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "apertus": ("apertus", {}),
    "arcee": ("arcee", _WIDTH),
    "bamba": ("bamba", {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}),
    "biogpt": ("biogpt", {}),
    "bitnet": ("bitnet", {}),
    "bloom": ("bloom", {}),
    "codegen": ("codegen", {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4}),
    "cwm": ("cwm", {**_MIXED, **_WIDTH, "bos_token_id": 1}),
    "cohere": ("cohere", {}),
    "cohere2": ("cohere2", {**_MIXED, **_WIDTH}),
    "dbrx": (
        "dbrx",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
            "ffn_config": {
                "ffn_act_fn": {"name": "silu"},
                "ffn_hidden_size": 48,
                "moe_num_experts": 4,
                "moe_top_k": 2,
                "moe_loss_weight": 0.0,
            },
        },
    ),
    "deepseek_v2": ("deepseek_v2", {**_LATENT, **_GROUPS, "topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, **_GROUPS}),
    "diffllama": ("diffllama", _WIDTH),
    "doge": ("doge", {}),
    "dots1": ("dots1", {**_GROUPS, **_WIDTH}),
    "ernie4_5": ("ernie4_5", _WIDTH),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 1,
        },
    ),
    "exaone4": ("exaone4", {**_MIXED, **_WIDTH}),
    "falcon": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon (alibi)": ("falcon", {"alibi": True, "new_decoder_architecture": False}),
    "falcon_h1": ("falcon_h1", {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "flex_olmo": ("flex_olmo", _EXPERTS),
    "gemma": ("gemma", _WIDTH),
    "gemma2": ("gemma2", {**_MIXED, **_WIDTH}),
    "gemma3_text": ("gemma3_text", {**_MIXED, **_WIDTH}),
    "glm": ("glm", {**_WIDTH, "partial_rotary_factor": 0.5}),
    "glm4": ("glm4", {**_WIDTH, "partial_rotary_factor": 0.5}),
    "glm4_moe": ("glm4_moe", {**_GROUPS, **_WIDTH}),
    "glm4_moe_lite": ("glm4_moe_lite", {**_GROUPS, **_LATENT}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}),
    "gpt_bigcode": ("gpt_bigcode", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}),
    "gpt_neo": (
        "gpt_neo",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_oss": ("gpt_oss", {**_LOCAL_EXPERTS, **_MIXED, **_WIDTH}),
    "gptj": ("gptj", {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4}),
    "granite": ("granite", {"logits_scaling": 4.0}),
    "granitemoe": ("granitemoe", _LOCAL_EXPERTS),
    "granitemoehybrid": (
        "granitemoehybrid",
        {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8},
    ),
    "granitemoeshared": ("granitemoeshared", {**_LOCAL_EXPERTS, "shared_intermediate_size": 24}),
    "helium": ("helium", _WIDTH),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _WIDTH),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {**_WIDTH, "num_experts": 4, "moe_topk": 2}),
    "jamba": ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}),
    "jetmoe": ("jetmoe", {"kv_channels": 8, "num_local_experts": 4, "num_key_value_heads": 2}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "llama": ("llama", {}),
    "llama (dynamic)": ("llama", {"rope_parameters": _DYNAMIC}),
    "llama (yarn)": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama4_text": (
        "llama4_text",
        {**_WIDTH, "num_local_experts": 4, "intermediate_size_mlp": 48, "attention_chunk_size": 16},
    ),
    "llama4_text (scaled queries)": (
        "llama4_text",
        {
            **_WIDTH,
            "num_local_experts": 4,
            "intermediate_size_mlp": 48,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 4096,
            "floor_scale": 16,
        },
    ),
    "mamba": ("mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}),
    "minimax": (
        "minimax",
        {**_LOCAL_EXPERTS, "layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    ),
    "minimax_m2": ("minimax_m2", {**_LOCAL_EXPERTS, **_WIDTH}),
    "ministral": ("ministral", {**_MIXED, **_WIDTH}),
    "ministral3": ("ministral3", _WIDTH),
    "mistral": ("mistral", {**_WINDOW, **_WIDTH}),
    "mixtral": ("mixtral", _LOCAL_EXPERTS),
    "mpt": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}),
    "nanochat": ("nanochat", {}),
    "nemotron": ("nemotron", {}),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", _MIXED),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "persimmon": ("persimmon", {}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "phi3 (long)": (
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32},
    ),
    "phi3 (window)": ("phi3", _WINDOW),
    "phimoe": ("phimoe", _LOCAL_EXPERTS),
    "qwen2": ("qwen2", {}),
    "qwen2 (window)": ("qwen2", {**_WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3": ("qwen3", _WIDTH),
    "qwen3_5_text": (
        "qwen3_5_text",
        {
            **_WIDTH,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, **_WIDTH}),
    "qwen3_next": (
        "qwen3_next",
        {
            **_EXPERTS,
            **_WIDTH,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 24,
        },
    ),
    "recurrent_gemma": ("recurrent_gemma", {"lru_width": 32, "attention_window_size": 16}),
    "rwkv": ("rwkv", {"attention_hidden_size": 32}),
    "seed_oss": ("seed_oss", _WIDTH),
    "smollm3": ("smollm3", {}),
    "stablelm": ("stablelm", {}),
    "starcoder2": ("starcoder2", _WINDOW),
    "xglm": ("xglm", {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}),
    "youtu": ("youtu", _LATENT),
    "zamba2": ("zamba2", {"layer_types": ["mamba", "hybrid"], "mamba_ngroups": 1}),
}
"""By the name in the table."""
NO_DROPOUT: Mapping[str, float] = dict.fromkeys(
    (
        "activation_dropout",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "classifier_dropout",
        "dropout",
        "embd_pdrop",
        "embedding_dropout",
        "hidden_dropout",
        "hidden_dropout_prob",
        "resid_pdrop",
        "residual_dropout",
    ),
    0.0,
)
"""Given to each: a model with dropout is refused for that alone."""
