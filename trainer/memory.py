"""What a run needs of a device's memory, from a model's config alone: no weight is loaded.

Weights, gradients and moments are counted. What the passes hold is measured on a model of one and
of two layers whose tensors have shapes but no numbers (torch's fake tensors), through the trainer's
own pass; each further layer holds as much as the second one.

    peak = weights + gradients + moments + reference + critic + engine
           + what backward needs + the larger of: logits, what a layer's backward takes for itself
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch and transformers are typed in part only.

import copy
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from agentrl.engine.local.models.check import library_errors
from agentrl.engine.local.models.quiet import quiet
from agentrl.engine.protocol import Footprint
from agentrl.trainer.config import LoraConfig, TrainerConfig
from agentrl.trainer.fsdp import layers, prepare
from agentrl.trainer.logprobs import KEPT_LOGITS, PIECE_LOGITS, predicting_states
from agentrl.trainer.lora import add_adapters
from agentrl.trainer.packing import PackedRows, PrefixTree
from agentrl.trainer.parallel_dims import SINGLE

_FLOAT32 = 4
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_HEAP = 1.5
"""Of what a pass holds, the C library keeps this much more: each micro-batch has other sizes, and
seldom fits into the blocks that earlier ones have freed (measured by benchmarks/memory.py)."""
_MOMENTS = {"adamw": 8.0, "adamw8bit": 2 * (1 + 4 / 256)}
"""Bytes for each trained weight: in 8 bits, with a float32 scale for every 256 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes by what they are for, at the step's peak."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Bytes in a pass, beside weights and gradients."""

    kept: int
    """At the end of forward."""
    most: int
    """At the worst moment of backward."""


def estimate(
    folder: Path, config: TrainerConfig, engine: Footprint, reference: Path | None = None
) -> Need:
    """The need of one device that samples and trains; the models' `config.json` are read.

    `reference` is the folder of `config.reference`, where that is another model.
    """
    settings = _read_model_settings(folder)
    lora: Any = config.lora  # frozen, so it hashes, as `relevant` below does
    count = _count_parameters(folder, lora)
    # Copies and sequence parallelism aside, each rank holds its share.
    shards = config.ranks // config.replicate
    moments = _MOMENTS[config.optimizer]
    critic = count.frozen + count.backbone * (_FLOAT32 + moments)
    plain: Any = LoraConfig()
    # Without one of its own it is a copy, or with adapters the model without them.
    copied = 0 if config.lora.rank or not config.has_reference else count.plain
    compared = copied if reference is None else _count_parameters(reference, plain).plain
    states = {
        "weights": count.frozen + count.trained * _FLOAT32,
        "gradients": count.trained * _FLOAT32,
        "optimizer": count.trained * moments,
        "reference": compared * _FLOAT32,
        "critic": critic if config.has_critic else 0,
    }
    num_tokens = max(config.token_budget, engine.longest)  # a longer row is computed alone
    # Only the settings that change what a pass holds.
    relevant: Any = TrainerConfig(
        lora=config.lora,
        precision=config.precision,
        fp32_head=config.fp32_head,
        activation_checkpointing=config.activation_checkpointing,
    )
    held = _measure_all_layers(folder, relevant, num_tokens, engine.longest)
    logits, head = _count_head_bytes(settings, num_tokens, trained=not config.lora.rank)
    embedding = 0 if config.lora.rank else settings.vocab_size * settings.hidden_size * _FLOAT32
    extra = max(logits + head, held.most - held.kept, embedding - held.kept)
    passes = {"activations": held.kept, "logits": logits, "temporary": extra - logits}
    if config.device == "cpu":
        passes["heap"] = int(_HEAP * (held.kept + logits))
    sharded = {name: int(size) // shards for name, size in states.items()}
    if config.offload and config.device != "cpu":
        width = _FLOAT32 if config.precision == "float32" else _FLOAT32 // 2
        there = {"weights": count.gathered * width, "gradients": count.gathered * _FLOAT32}
        sharded = dict.fromkeys(sharded, 0) | there
    sampling = _count_engine_bytes(settings, count.plain, config, engine)
    if not engine.share_device:
        return Need(parts=sharded | passes | sampling)
    return _take_larger_turn(sharded, passes, sampling, config)


def _take_larger_turn(
    states: Mapping[str, int],
    passes: Mapping[str, int],
    engine: Mapping[str, int],
    config: TrainerConfig,
) -> Need:
    """The larger need of the two turns; what the other one holds alone is 0."""
    lora = config.lora
    stays = {"engine weights"} if lora.rank and lora.publish == "adapter" else set[str]()
    kept = {name: engine[name] * (name in stays) for name in engine}
    training = {**states, **passes, **kept}
    # Over ranks, and on a CPU, the optimizer's state stays where it is.
    moved = {"optimizer"} if config.ranks == 1 and config.device != "cpu" else set[str]()
    moved |= {"gradients"}
    sampled = {name: states[name] * (name not in moved) for name in states}
    sampling = {**sampled, **dict.fromkeys(passes, 0), **engine}
    return max((Need(parts=parts) for parts in (training, sampling)), key=lambda need: need.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """Of a model's parameters."""

    trained: int
    backbone: int
    """Trained ones, the output head aside."""
    plain: int
    """Those of the model without adapters."""
    frozen: int
    """Bytes of those that are not trained."""
    gathered: int
    """What a pass over weights in host memory has at once: all but the layers, and two of these."""


@cache
def _read_model_settings(folder: Path) -> PreTrainedConfig:
    settings: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    return settings


@cache
def _count_parameters(folder: Path, lora: LoraConfig) -> _Count:
    model = _make_meta_model(_read_model_settings(folder), lora)
    named = dict(model.named_parameters())
    blocks = [sum(p.numel() for p in layer.parameters()) for layer in layers(model)]
    return _Count(
        trained=sum(p.numel() for p in named.values() if p.requires_grad),
        backbone=sum(p.numel() for p in model.base_model.parameters() if p.requires_grad),
        plain=sum(p.numel() for p in named.values() if not (lora.rank and p.requires_grad)),
        frozen=sum(p.numel() * p.element_size() for p in named.values() if not p.requires_grad),
        gathered=sum(p.numel() for p in named.values()) - sum(blocks) + sum(sorted(blocks)[-2:]),
    )


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts the bytes of what operations have made and nobody has dropped yet.

    A model's parameters and buffers, of which operations make views, do not count.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.now = self.most = 0
        here = (*model.parameters(), *model.buffers())
        self._seen = weakref.WeakSet[Any](tensor.untyped_storage() for tensor in here)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default:
            # Without numbers torch's product of experts takes bfloat16 only. One matrix against a
            # stack has a row for each row of it, one against one a matrix for each expert, and a
            # stack against one a row for each row of its matrices.
            left, right, offsets = args[:3]
            stack = [offsets.shape[0]] if left.ndim == right.ndim == 2 else []
            result = left.new_empty([*stack, left.shape[-2], right.shape[-1]])
        else:
            result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count_new_storage(tensor.untyped_storage())
        return result

    def _count_new_storage(self, storage: Any) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._count_freed_bytes, storage.nbytes())

    def _count_freed_bytes(self, size: int) -> None:
        self.now -= size


@cache
def _measure_all_layers(
    folder: Path, config: TrainerConfig, num_tokens: int, longest: int
) -> _Held:
    """What all layers hold, from models of one and of two of them."""
    settings, rows = _read_model_settings(folder), _make_packed_rows(num_tokens, longest)
    with library_errors(folder):
        one, two = (_measure_fake_pass(_reduce_layers(settings, n), config, rows) for n in (1, 2))
    further = settings.num_hidden_layers - 2
    return _Held(
        kept=two.kept + further * (two.kept - one.kept),
        most=two.most + further * (two.kept - one.kept),
    )


def _measure_fake_pass(
    settings: PreTrainedConfig, config: TrainerConfig, rows: PackedRows
) -> _Held:
    model = _make_meta_model(settings, config.lora)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        if not config.lora.rank:
            _cut_off_embeddings(model)
        prepare(model, config.model_copy(update={"liger": False}), SINGLE)
        live = _Live(model)
        kept = gradients = 0
        with live:
            for _ in range(2):  # the first pass makes the gradients
                gradients = live.now
                live.most = 0
                states_KD = predicting_states(model, rows)
                kept = live.now
                torch.autograd.backward(states_KD, torch.empty_like(states_KD))
                del states_KD
    return _Held(kept=kept - gradients, most=live.most - gradients)


def _cut_off_embeddings(model: PreTrainedModel) -> None:
    """The gradient of the embeddings comes when all layers are done; it is counted apart."""
    embeddings = model.get_input_embeddings()
    embeddings.requires_grad_(False)

    def need_grad(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output.requires_grad_()

    embeddings.register_forward_hook(need_grad)


def _make_packed_rows(num_tokens: int, longest: int) -> PackedRows:
    """Packed rows of the longest length, all of whose tokens are trained."""
    starts = np.arange(0, num_tokens, longest)
    ends = np.append(starts[1:], num_tokens)
    zeros = np.zeros(num_tokens, dtype=np.int64)
    return PackedRows(
        ids_P=zeros,
        positions_P=np.arange(num_tokens) - np.repeat(starts, ends - starts),
        tree=PrefixTree(offsets_S1=np.append(starts, num_tokens), ends_S=ends, longest=longest),
        predictors_K=np.arange(num_tokens),
        targets_K=zeros,
        source_K=zeros,
    )


def _count_head_bytes(
    settings: PreTrainedConfig, num_tokens: int, *, trained: bool
) -> tuple[int, int]:
    """Bytes of logits, and of the gradients of states and head beside them."""
    piece = min(max(1, PIECE_LOGITS // settings.vocab_size), num_tokens) * settings.vocab_size
    kept = min(num_tokens * settings.vocab_size, KEPT_LOGITS + piece)
    gradients = num_tokens + (settings.vocab_size if trained else 0)
    return kept * _FLOAT32, gradients * settings.hidden_size * _FLOAT32


def _count_engine_bytes(
    settings: PreTrainedConfig, plain: int, config: TrainerConfig, engine: Footprint
) -> dict[str, int]:
    """The engine's weights, unless they are the trainer's, and its keys and values."""
    if not engine.num_devices:
        return {"engine weights": 0, "cache": 0}
    theirs = config.lora.dtype if config.lora.rank else "float32"
    dtype = theirs if engine.dtype == "auto" else engine.dtype
    apart = config.is_apart or (bool(config.lora.rank) and config.lora.publish == "merged")
    shares = engine.shares_weights and dtype == theirs and not apart
    heads = settings.num_attention_heads
    kv_heads = getattr(settings, "num_key_value_heads", None) or heads
    width = getattr(settings, "head_dim", None) or settings.hidden_size // heads
    per_token = 2 * settings.num_hidden_layers * kv_heads * width * _BYTES[dtype]
    return {
        "engine weights": 0 if shares else plain * _BYTES[dtype] // engine.num_devices,
        "cache": engine.cached_tokens * per_token // engine.num_devices,
    }


def _make_meta_model(settings: PreTrainedConfig, lora: LoraConfig) -> PreTrainedModel:
    """Of the run's shape, on `meta`."""
    dtype = lora.dtype if lora.rank else "float32"
    with quiet(), torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            copy.deepcopy(settings), dtype=getattr(torch, dtype)
        )
        if lora.rank:
            add_adapters(model, lora)
    return model


def _reduce_layers(settings: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    cut = copy.deepcopy(settings)
    cut.num_hidden_layers = num_layers
    kinds: Iterable[str] | None = getattr(cut, "layer_types", None)
    if kinds is not None:
        cut.layer_types = list(kinds)[:num_layers]
    return cut
