"""A model is loaded as its files have it, or refused in one sentence that names what is wrong."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# safetensors and torch are typed in part only.

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForCausalLM,
)

from agentrl.cli.dispatch import main
from agentrl.config import Loaded
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.check import check_files
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.local.reward import reward
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.jobs import evaluate, train
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.model_files import context_length
from agentrl.tokens import Tokenizer
from agentrl.trainer.export import export_hf
from agentrl.trainer.model import refuse_dropout
from agentrl.trainer.sharded_load import empty_model

Tensors = dict[str, Tensor]
SMALL: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}


def rope(**parameters: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **parameters}}


def yarn(**parameters: object) -> dict[str, object]:
    return rope(
        **{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128} | parameters
    )


def longrope(short: object, long: object) -> dict[str, object]:
    return rope(
        rope_type="longrope",
        short_factor=short,
        long_factor=long,
        factor=2.0,
        original_max_position_embeddings=128,
    )


UP = "model.layers.1.mlp.up_proj.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models of one kind each, with the tokenizer of `tiny`."""
    root = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    llama, mixtral = LlamaConfig(**SMALL), MixtralConfig(**SMALL, num_local_experts=3)
    tied, scored = LlamaConfig(**SMALL), LlamaConfig(**SMALL)
    tied.tie_word_embeddings = True
    scored.num_labels = 1
    scorer: Any = LlamaForSequenceClassification
    made: dict[str, Any] = {
        "llama": LlamaForCausalLM(llama),
        "tied": LlamaForCausalLM(tied),
        "reward": scorer(scored),
        "mixtral": MixtralForCausalLM(mixtral),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
        for path in resolve_model("tiny").glob("*token*"):
            shutil.copy(path, root / name)
        shutil.copy(resolve_model("tiny") / "chat_template.jinja", root / name)
    return {name: root / name for name in made}


@pytest.fixture
def folder(saved: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a model, to be damaged."""
    return lambda kind: Path(shutil.copytree(saved[kind], tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})


def configure(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.arange(9)[None]).logits
    return found


def refused(folder: Path, load: Callable[[Path], object] = load_model) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(name: str, value: Callable[[Tensor], Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: value(tensors[name]).clone()})


def moved(old: str, new: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def without(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


@pytest.mark.parametrize(
    ("kind", "damage", "says"),
    [
        ("llama", without(UP), f"(missing: {UP})"),
        ("llama", without("lm_head.weight"), "(missing: lm_head.weight)"),
        ("llama", moved(UP, "model.extra"), f"(missing: {UP}; unexpected: model.extra)"),
        ("llama", put(UP, lambda x: x[1:]), f"{UP} [23, 16] instead of [24, 16]"),
        ("llama", put(UP, lambda x: x.to(torch.int8)), f"{UP} (I8)"),
        ("llama", put(UP, lambda x: x.to(torch.float8_e4m3fn)), f"{UP} (F8_E4M3)"),
        ("mixtral", without(f"{EXPERT}.1.w1.weight"), f"missing: {EXPERT}.1.w1.weight"),
        ("mixtral", moved(f"{EXPERT}.0.w1.weight", f"{EXPERT}.3.w1.weight"), f"{EXPERT}.0.w1"),
        (
            "mixtral",
            without(*(f"{EXPERT}.2.w{i}.weight" for i in (1, 2, 3))),
            "[2, 16, 24] instead",
        ),
    ],
)
def test_weights_that_are_not_whole_are_refused_by_name(
    kind: str, damage: Callable[[Tensors], object], says: str, folder: Callable[[str], Path]
) -> None:
    damaged = folder(kind)
    rewrite(damaged, damage)
    assert says in refused(damaged)
    assert says in refused(damaged, empty_model)


def test_numbers_that_are_none_are_refused(folder: Callable[[str], Path]) -> None:
    damaged = folder("llama")
    rewrite(damaged, put(UP, lambda x: x.index_fill(0, torch.tensor(3), torch.nan)))
    assert f"(not finite: {UP})" in refused(damaged)


def test_a_head_that_the_config_ties_need_not_be_there(folder: Callable[[str], Path]) -> None:
    tied = folder("tied")
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    expected = logits(load_model(tied))
    name = "model.embed_tokens.weight"
    rewrite(tied, lambda tensors: tensors.update({"lm_head.weight": tensors[name].clone()}))
    assert torch.equal(logits(load_model(tied)), expected)
    assert empty_model(tied) is None
    rewrite(tied, put("lm_head.weight", lambda x: x + 1))
    assert "lm_head.weight and model.embed_tokens.weight are one tensor" in refused(tied)


def test_what_older_checkpoints_have_beside_is_passed_over(folder: Callable[[str], Path]) -> None:
    old = folder("llama")
    expected = logits(load_model(old))
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(old, lambda tensors: tensors.update({frequencies: torch.ones(4)}))
    # A copy for other libraries is none of the model's files.
    save_file({UP: torch.zeros(24, 16)}, old / "consolidated.safetensors")
    assert torch.equal(logits(load_model(old)), expected)
    tensors = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    assert torch.equal(logits(load_model(old)), expected)
    assert empty_model(old) is None


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({UP: "model-3.safetensors"}, "model-3"),
        ({"model.x": "model-1.safetensors"}, "model.x"),
        ({UP: "a" * 5000}, "names 'aaaa"),
        ({UP: "a\0b"}, r"names 'a\x00b'"),
        ({UP: "\ud800"}, r"names '\ud800'"),
        ({UP: "../model.safetensors"}, "names '../model.safetensors'"),
        ({UP: "."}, "names '.'"),
        ({UP: 3}, "weight_map"),
        (None, "weight_map"),
    ],
)
def test_an_index_must_agree_with_its_files(
    files: dict[str, object] | None, says: str, folder: Callable[[str], Path]
) -> None:
    sharded = folder("llama")
    expected = logits(load_model(sharded))
    tensors = load_file(sharded / "model.safetensors")
    halves = sorted(tensors)[::2], sorted(tensors)[1::2]
    place: dict[str, object] = {
        n: f"model-{i}.safetensors" for i, names in enumerate(halves) for n in names
    }
    for i, names in enumerate(halves):
        shard = {name: tensors[name] for name in names}
        save_file(shard, sharded / f"model-{i}.safetensors", metadata={"format": "pt"})
    (sharded / "model.safetensors").unlink()
    path = sharded / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": place}))
    assert torch.equal(logits(load_model(sharded)), expected)
    path.write_text(json.dumps({"weight_map": files and place | files}))
    assert says in refused(sharded)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model_type": "unheard"}, "model_type 'unheard' is unknown"),
        ({"model_type": 3}, "model_type 3 is unknown"),
        ({"model_type": "t5"}, "'t5'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized"),
        ({"quantization_config": {"load_in_4bit": True}}, "quantized"),
        ({"quantization_config": "fp8"}, "quantized (quantization_config: fp8)"),
        ({"quantization_config": [1]}, "quantized"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"num_hidden_layers": 3}, "missing: model.layers.2"),
        ({"num_hidden_layers": 1}, "unexpected: model.layers.1"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, but it is expected to be at least"),
        ({"num_attention_heads": "2"}, "'num_attention_heads' expected int, got str"),
        ({"num_key_value_heads": -1}, "num_key_value_heads is -1, but it is expected to be at"),
        ({"vocab_size": 0}, "vocab_size is 0, but it is expected to be at least 1"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06, but it is expected to be between 0"),
        ({"layer_types": ["full_attention"]}, "must be equal to the number of `layer_types` (1)"),
        ({"attention_dropout": -1}, "set attention_dropout to 0"),
        (rope(rope_theta=0), "rope_parameters.rope_theta is 0, but it is expected to be a number"),
        (rope(rope_theta=-1e4), "rope_theta is -10000, but it is expected to be a number above 0"),
        (rope(rope_theta="1e4"), 'rope_theta is "1e4", but it is expected to be a number above 0'),
        (rope(rope_theta=None), "rope_theta is null, but it is expected to be a number above 0"),
        (rope(rope_theta=math.nan), "rope_theta is nan, but it is expected to be a number above"),
        (
            rope(rope_type="linear", factor=0),
            "factor is 0, but it is expected to be a number above",
        ),
        (rope(rope_type="linear", factor=-2), "rope_parameters.factor is -2, but it is expected"),
        (
            yarn(attention_factor=math.nan),
            "attention_factor is nan, but it is expected to be a num",
        ),
        (yarn(attention_factor=[1.0]), "4 frequencies, but 1 numbers of attention_factor"),
        (yarn(attention_factor=-1.0), "attention_factor is -1, but it is expected to be a number"),
        (yarn(beta_fast=math.nan), "transformers can make no model of it"),
        (yarn(mscale=math.inf, mscale_all_dim=1.0), "a factor of attention (attention_scaling)"),
        (yarn(mscale=-1e9, mscale_all_dim=1.0), "a factor of attention (attention_scaling)"),
        (yarn(original_max_position_embeddings=0), "original_max_position_embeddings is 0, but"),
        (longrope([1.0] * 3, [1.0] * 4), "transformers can make no model of it"),
        (longrope([1.0] * 4, [1.0] * 3), "4 frequencies, but 3 numbers of long_factor"),
        (longrope([1.0] * 4, [2.0]), "4 frequencies, but 1 numbers of long_factor"),
        (longrope([1.0], [1.0] * 4), "4 frequencies, but 1 numbers of short_factor"),
        (longrope([1.0] * 4, [1.0, 1.0, math.nan, 1.0]), "expected to be a number above 0"),
        (longrope([1.0] * 4, [1.0, 1.0, "1", 1.0]), "expected to be a number above 0"),
        (
            longrope([0.0] * 4, [1.0] * 4),
            "short_factor is [0.0, 0.0, 0.0, 0.0], but it is expected",
        ),
        (longrope([1.0] * 4, [1.0, 1.0, None, 1.0]), "expected to be a number above 0"),
        (longrope([1.0] * 4, 3), "transformers can make no model of it"),
        (rope(rope_theta=1e-300), "frequencies (inv_freq) that are not finite or below 0"),
        ({"num_heads": 0}, "num_heads is 0, but it is expected to be at least 1"),
        ({"sliding_window": 0}, "sliding_window is 0, but it is expected to be a count above 0"),
        ({"sliding_window": -4}, "sliding_window is -4, but it is expected to be a count above 0"),
        ({"sliding_window": "8"}, 'sliding_window is "8", but it is expected to be a count above'),
        (
            {"sliding_window": 1.5},
            "sliding_window is 1.5, but it is expected to be a count above 0",
        ),
        (
            {"text_config": {"attention_chunk_size": 0}},
            "text_config.attention_chunk_size is 0, but",
        ),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0, but places are told apart"),
        ({"max_position_embeddings": -5}, "max_position_embeddings is -5, but places are told"),
        ({"max_position_embeddings": math.nan}, "max_position_embeddings is nan, but places"),
        ({"max_position_embeddings": "2048"}, 'max_position_embeddings is "2048", but it is'),
        ({"max_position_embeddings": True}, "max_position_embeddings is true, but it is expected"),
        ({"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0, but it is expected to be"),
        ({"query_pre_attn_scalar": -2}, "query_pre_attn_scalar is -2, but it is expected to be"),
        ({"hidden_act": "unheard"}, "unheard"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers is 100000, but the files have 21 tens"),
        ({"text_config": {"n_layers": 10**30}}, "n_layers is 1e+30, but the files have 21 tensors"),
        ({"hidden_size": 10**9}, "hidden_size is 1e+09, but no tensor in the files has more than"),
        ({"vocab_size": 10**9}, "vocab_size is 1e+09, but no tensor"),
        ({"head_dim": 10**9}, "head_dim is 1e+09, but no tensor"),
        ({"num_experts": 10**9}, "num_experts is 1e+09, but no tensor in the files has a side of"),
        ({"partial_rotary_factor": 1e9}, "partial_rotary_factor is 1e+09, but it is a share"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings is 1e+30, but places are"),
    ],
)
def test_a_dry_run_refuses_what_the_config_says(
    settings: dict[str, object],
    says: str,
    folder: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    damaged = folder("llama")
    configure(damaged, **settings)
    arguments = ["train", "--env", "calculator", "--model", str(damaged), "--dry-run"]
    assert main([*arguments, "--runs-dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_a_mixture_that_sends_a_token_to_more_experts_than_it_has_is_refused(
    folder: Callable[[str], Path],
) -> None:
    mixture = folder("mixtral")
    configure(mixture, num_experts_per_tok=3)
    load_model(mixture)
    configure(mixture, num_experts_per_tok=4)
    assert "a token goes to 4 experts, but a layer has 3" in refused(mixture)
    assert "a token goes to 4 experts, but a layer has 3" in refused(mixture, check_files)


@pytest.mark.parametrize("content", ["[]", "{", "", '{"temperature": "hot"}', '{"max_length": []}'])
def test_a_generation_config_with_which_nothing_is_loaded_is_refused_at_once(
    content: str, folder: Callable[[str], Path]
) -> None:
    """Or nothing is wrong with it: a dry run and a run say the same."""
    whole = folder("llama")
    (whole / "generation_config.json").write_text(content)
    assert refusal(whole, check_files) == refusal(whole, load_model)


def refusal(folder: Path, check: Callable[[Path], object]) -> str | None:
    try:
        check(folder)
    except ConfigError as error:
        return str(error)
    return None


def evaluated(loaded: Loaded[RunConfig]) -> object:
    return evaluate(loaded.config)


def trained(loaded: Loaded[RunConfig]) -> object:
    return train(loaded)


@pytest.mark.parametrize("job", [evaluated, trained])
def test_files_are_looked_at_before_a_server_is_asked(
    job: Callable[[Loaded[RunConfig]], object], folder: Callable[[str], Path], tmp_path: Path
) -> None:
    damaged = folder("llama")
    rewrite(damaged, without(UP))
    flags = ["--env", "calculator", "--model", str(damaged), "--engine", "sglang"]
    flags += ["--runs-dir", str(tmp_path), "--rollout.max-new-tokens", "4"]
    flags += ["--engine.sglang.url", "http://127.0.0.1:9", "--rollout.max-context-tokens", "200"]
    assert f"(missing: {UP})" in refused(damaged, lambda _: job(load_run_config(flags=flags)))


def test_what_a_config_says_of_passes_does_not_matter(
    folder: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = folder("llama")
    expected = logits(load_model(asked))
    configure(asked, return_dict=False, output_attentions=True, time_limit=float("inf"))
    model = load_model(asked)
    assert torch.equal(logits(model), expected)
    assert torch.equal(logits(load_model(export_hf(model, asked, tmp_path / "out"))), expected)
    assert context_length(RunConfig.model_validate({"env": []}), asked) == 256


def test_a_reward_model_without_its_head_is_refused(folder: Callable[[str], Path]) -> None:
    scorer = folder("reward")
    rewrite(scorer, without("score.weight"))
    assert "missing: score.weight" in refused(scorer, lambda it: reward(str(it), "cpu", ()))


def test_dropouts_of_heads_that_are_not_there_are_none() -> None:
    shape: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64}
    off: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    make: Any = GPT2Config
    config = make(**shape | off)
    assert config.summary_first_dropout > 0
    refuse_dropout(GPT2LMHeadModel(config))
    for name in off:
        config = make(**shape | off | {name: 0.1})
        with pytest.raises(ConfigError, match="has dropout"):
            refuse_dropout(GPT2LMHeadModel(config))


def test_what_only_training_makes_a_difference_to_is_refused_by_its_setting(
    folder: Callable[[str], Path],
) -> None:
    """However little noise it is."""
    noisy = folder("mixtral")
    configure(noisy, router_jitter_noise=1e-5)
    with pytest.raises(ConfigError, match="set router_jitter_noise to 0"):
        refuse_dropout(load_model(noisy))


def test_a_dropout_that_is_no_number_is_one(folder: Callable[[str], Path]) -> None:
    noisy = folder("llama")
    configure(noisy, attention_dropout=float("nan"))
    with pytest.raises(ConfigError, match="set attention_dropout to 0"):
        refuse_dropout(check_files(noisy))


def test_finite_weights_without_numbers_are_refused(folder: Callable[[str], Path]) -> None:
    empty = folder("llama")
    rewrite(empty, lambda tensors: tensors[UP].fill_(3e38))
    assert "computes no numbers" in refused(empty, lambda it: LocalEngine(load_model(it)))


def test_bases_and_bounds_of_other_settings_are_none(folder: Callable[[str], Path]) -> None:
    """Zero where there is none of a thing, and a base that a model does without."""
    whole = folder("llama")
    configure(whole, rope_theta=None, shared_expert_size=0, q_lora_rank=0, other={"rope_theta": 7})
    configure(whole, sliding_window=0, use_sliding_window=False, final_logit_softcapping=None)
    check_files(whole)
    configure(whole, **yarn(attention_factor=1.5), sliding_window=None, attention_chunk_size=64)
    load_model(whole)
    configure(whole, **longrope([1.0] * 4, [2.0] * 4))
    check_files(whole)


def test_a_mixture_of_one_expert_is_served() -> None:
    """It has a choice that is none."""
    made: Any = MixtralForCausalLM
    config = MixtralConfig(**SMALL, num_local_experts=1, num_experts_per_tok=1)
    LocalEngine(made(config).eval())


def test_a_run_trains_a_model_with_more_rows_than_ids(
    folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    padded = folder("llama")
    assert Tokenizer.load(padded).vocab_size < SMALL["vocab_size"]
    arguments = ["train", "--env", "calculator", "--model", str(padded), "--steps", "1"]
    arguments += ["--rollout.max-new-tokens", "4", "--rollout.tasks-per-step", "2", "--name", "r"]
    arguments += ["--rollout.group-size", "2", "--rollout.max-context-tokens", "250"]
    assert main([*arguments, "--runs-dir", str(tmp_path)]) == 0, capsys.readouterr().err
    (step,) = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(step)["verified"] == 1
    assert json.loads(step)["gap_max"] < 1e-4
    assert load_model(tmp_path / "r" / "model").config.vocab_size == SMALL["vocab_size"]


def test_the_memory_of_a_mixture_is_counted(
    saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def need(budget: int) -> dict[str, int]:
        arguments = ["train", "--env", "calculator", "--model", str(saved["mixtral"]), "--dry-run"]
        arguments += ["--device-memory", "24GB", "--json", "--runs-dir", str(tmp_path / "runs")]
        arguments += ["--rollout.max-new-tokens", "16", "--rollout.max-context-tokens", "256"]
        assert main([*arguments, "--trainer.token-budget", str(budget)]) == 0
        found: dict[str, int] = json.loads(capsys.readouterr().out)["parts"]
        return found

    stored = load_file(saved["mixtral"] / "model.safetensors")
    once, twice = need(1024), need(2048)
    assert once["weights"] == 4 * sum(tensor.numel() for tensor in stored.values())
    assert twice["activations"] == pytest.approx(2 * once["activations"], rel=0.05)
