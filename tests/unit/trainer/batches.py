"""Small batches and models for the trainer's tests, made through `TokenRecord` like real ones."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.tokens import TokenRecord, seal
from agentrl.types import Batch, Segment, StopReason

VOCAB = 31


def tiny_model(
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    tied: bool = True,
    bias: bool = False,
    vocab: int = VOCAB,
) -> LlamaForCausalLM:
    """Two layers, grouped-query attention, an odd vocabulary."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    if bias:
        model.lm_head.bias = nn.Parameter(torch.randn(vocab))
    nn.Module.to(model, dtype)
    return model


def segment(
    prompt: Sequence[int], turns: Sequence[tuple[Sequence[int], Sequence[int]]], seed: int = 0
) -> Segment:
    """A segment of turns (sampled ids, ids of the environment's answer)."""
    rng = np.random.default_rng(seed)
    record = TokenRecord(VOCAB)
    record.append_prompt(prompt)
    for sampled, answer in turns:
        logprobs = -rng.uniform(0.5, 4.0, len(sampled))
        record.append_sampled(seal(sampled, logprobs, [0] * len(sampled), StopReason.STOP))
        if answer:
            record.append_environment(answer)
    return record.close()


def batch_of(
    segments: Sequence[Segment],
    *,
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    episodes: Sequence[int] | None = None,
    turn_rewards: list[tuple[float, ...]] | None = None,
    temperature: float = 1.0,
) -> Batch:
    """One row per segment; by default each is an episode of its own.

    Advantages and weights are per row; these are relative, and sum to 1 over the trained tokens.
    """
    offsets = _offsets([s.num_tokens for s in segments])
    episode_R = np.array(range(len(segments)) if episodes is None else episodes, dtype=np.int32)
    num_episodes = int(episode_R.max()) + 1
    mask_N = np.concatenate([s.mask_T for s in segments])
    advantages_N = None
    if advantages is not None:
        spread = np.repeat(np.array(advantages, dtype=np.float32), np.diff(offsets))
        advantages_N = np.where(mask_N, spread, np.float32(0))
    return Batch(
        ids_N=np.concatenate([s.ids_T for s in segments]),
        mask_N=mask_N,
        logprobs_N=np.concatenate([s.logprobs_T for s in segments]),
        sources_N=np.concatenate([s.sources_T for s in segments]),
        turns_N=np.concatenate([s.turns_T for s in segments]),
        versions_N=np.concatenate([s.versions_T for s in segments]),
        marks_N=np.concatenate([s.marks_T for s in segments]),
        offsets_R1=offsets,
        episode_R=episode_R,
        digests_R=tuple(s.digest for s in segments),
        appends_A=np.concatenate([s.appends_A for s in segments]),
        append_offsets_R1=_offsets([len(s.appends_A) for s in segments]),
        episode_ids=tuple(f"episode-{e}" for e in range(num_episodes)),
        group_E=np.zeros(num_episodes, dtype=np.int32),
        rewards_E=np.zeros(num_episodes),
        turn_rewards_U=None
        if turn_rewards is None
        else np.concatenate([np.array(r) for r in turn_rewards]),
        turn_offsets_E1=None if turn_rewards is None else _offsets([len(r) for r in turn_rewards]),
        temperature=temperature,
        advantages_N=advantages_N,
        weights_N=_weights(mask_N, offsets, weights or [1.0] * len(segments)),
    )


def random_segments(lengths: Sequence[int], seed: int = 0) -> list[Segment]:
    """Segments of about these lengths, each with one to three turns."""
    rng = np.random.default_rng(seed)
    segments: list[Segment] = []
    for number, length in enumerate(lengths):
        num_turns = int(rng.integers(1, 4))
        part = max(1, length // (2 * num_turns + 1))
        turns = [
            (rng.integers(0, VOCAB, part).tolist(), rng.integers(0, VOCAB, part).tolist())
            for _ in range(num_turns)
        ]
        prompt = rng.integers(0, VOCAB, max(1, length - 2 * num_turns * part)).tolist()
        segments.append(segment(prompt, turns, seed + number))
    return segments


def plain_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The slow reference: one unpacked row at a time; [N], zero where not trained."""
    result = torch.zeros(batch.num_tokens, dtype=model.dtype)
    for r in range(batch.num_rows):
        ids = torch.from_numpy(batch.ids_N[batch.row(r)]).long()
        logits = model(input_ids=ids[None]).logits[0] / batch.temperature
        logprobs = torch.log_softmax(logits, -1)
        start = int(batch.offsets_R1[r])
        for t in range(1, len(ids)):
            if batch.mask_N[start + t]:
                result[start + t] = logprobs[t - 1, ids[t]]
    return result


def plain_loss(model: LlamaForCausalLM, batch: Batch, low: float, high: float) -> Tensor:
    """The clipped loss of the whole batch at once, token by token, in plain words."""
    assert batch.advantages_N is not None
    logprobs_N = plain_logprobs(model, batch)
    assert batch.weights_N is not None
    total = torch.zeros((), dtype=model.dtype)
    for n in np.flatnonzero(batch.mask_N).tolist():
        weight, advantage = float(batch.weights_N[n]), float(batch.advantages_N[n])
        ratio = torch.exp(logprobs_N[n] - float(batch.logprobs_N[n]))
        clipped = torch.clamp(ratio, 1 - low, 1 + high)
        total = total - weight * torch.minimum(ratio * advantage, clipped * advantage)
    return total


def on_policy(
    model: PreTrainedModel, segments: Sequence[Segment], *, version: int = 0, **options: object
) -> Batch:
    """A batch whose behavior logprobs are the model's own, recorded as an engine would."""
    batch = batch_of(segments)
    with torch.no_grad():
        logprobs_N = plain_logprobs(model, batch).numpy()
    remade = [with_logprobs(s, logprobs_N[batch.row(r)], version) for r, s in enumerate(segments)]
    return batch_of(remade, **options)  # type: ignore[arg-type]  # passed through as given


def with_logprobs(old: Segment, logprobs_T: NDArray[np.floating], version: int) -> Segment:
    record = TokenRecord(VOCAB)
    start = 0
    for number, length in enumerate(old.appends_A.tolist()):
        ids = old.ids_T[start : start + length].tolist()
        if number == 0:
            record.append_prompt(ids)
        elif old.mask_T[start]:
            logprobs = logprobs_T[start : start + length]
            record.append_sampled(seal(ids, logprobs, [version] * length, StopReason.STOP))
        else:
            record.append_environment(ids)
        start += length
    return record.close()


def _weights(
    mask_N: NDArray[np.bool_], offsets: NDArray[np.int64], weights: Sequence[float]
) -> NDArray[np.float32]:
    spread = mask_N * np.repeat(np.array(weights, dtype=np.float64), np.diff(offsets))
    return (spread / (spread.sum() or 1.0)).astype(np.float32)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
