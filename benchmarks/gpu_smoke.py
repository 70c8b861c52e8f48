"""What only an accelerator can show, on one device in under 8 minutes.

    tests marked gpu        at most 4 minutes
    one step                capped at 24 GB, beside what the dry run predicts for it
    the longest sequence    of doubling lengths that trains under the same cap

The model has random weights in the shape of Qwen2.5-0.5B; it computes in bfloat16 with activation
checkpointing. Without an accelerator the exit code is 2.

Usage: python benchmarks/gpu_smoke.py
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from agentrl.engine.config import EngineConfig
from agentrl.orchestration.kinds import LocalKind
from agentrl.rollout import make_batch
from agentrl.tokens import TokenRecord, seal
from agentrl.trainer.algorithms.advantage import token_advantages
from agentrl.trainer.algorithms.normalisations import token_mean
from agentrl.trainer.config import RatioBandConfig, TrainerConfig
from agentrl.trainer.device import OutOfMemory, cap_memory, memory, resolve_device, synchronize
from agentrl.trainer.memory import estimate
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import (
    Batch,
    Episode,
    EpisodeStop,
    Score,
    StopReason,
    Task,
    TurnRecord,
)

CAP_BYTES = 24 * 10**9
TESTS_S, LONGEST_S = 240, 120
VOCAB = 151_936
PROMPT = 16
CONFIG = TrainerConfig(
    precision="bfloat16",
    activation_checkpointing=True,
    token_budget=4096,
    device="auto",
    ratio_band=RatioBandConfig(mean=1e9, max=1e9),
)


def run_tests() -> bool:
    """The tests marked gpu; none of them failing is enough."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    try:
        code = subprocess.run(command, timeout=TESTS_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"the tests marked gpu took longer than {TESTS_S} s")
        return False
    return code in (0, 5)  # 5: there are none


def make_model(device: torch.device) -> PreTrainedModel:
    """Random weights, on the device."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=1 << 20,
        tie_word_embeddings=True,
    )
    with device:
        model: PreTrainedModel = Qwen2ForCausalLM(config)
    nn.Module.to(model, device)
    return model


def make_rows(lengths: list[int]) -> Batch:
    """One episode for each length, every second one with an advantage of -1."""
    rng = np.random.default_rng(0)
    episodes: list[Episode] = []
    for row, length in enumerate(lengths):
        record = TokenRecord(VOCAB)
        record.append_prompt(rng.integers(0, VOCAB, PROMPT).tolist())
        ids = rng.integers(0, VOCAB, length - PROMPT).tolist()
        record.append_sampled(seal(ids, [-12.0] * len(ids), [0] * len(ids), StopReason.STOP))
        episodes.append(
            Episode(
                id=str(row),
                env="smoke",
                task=Task(prompt="smoke"),
                split="train",
                group=0,
                member=row,
                attempt=0,
                seed=0,
                segments=(record.close(),),
                messages=(),
                turns=(TurnRecord(reward=0.0),),
                stop=EpisodeStop.ANSWERED,
                outcome=Score(value=0.0),
            )
        )
    batch = make_batch(episodes, temperature=1.0)
    signs_E = np.array([1.0 - 2 * (row % 2) for row in range(len(lengths))])
    advantages_N = token_advantages(batch, signs_E)
    return replace(batch, advantages_N=advantages_N, weights_N=token_mean(batch))


def step_s(trainer: LocalTrainer, lengths: list[int], device: torch.device) -> float:
    """Seconds of one update."""
    batch = make_rows(lengths)
    synchronize(device)
    started = time.perf_counter()
    trainer.update(batch)
    synchronize(device)
    return time.perf_counter() - started


def predicted(longest: int) -> int:
    """Bytes of the trainer alone, as the dry run has them."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(torch.device("meta")).config.save_pretrained(folder)
        footprint = LocalKind().footprint(EngineConfig(), rows=0, longest=longest)
        return estimate(Path(folder), CONFIG, footprint).total


def longest_row(trainer: LocalTrainer, device: torch.device) -> int:
    """Tokens of the longest row that trained, of doubling lengths."""
    started, length = time.perf_counter(), 4096
    while time.perf_counter() - started < LONGEST_S:
        try:
            seconds = step_s(trainer, [2 * length], device)
        except OutOfMemory:
            break
        length *= 2
        print(f"  {length:,} tokens: {seconds:.1f} s", flush=True)
    return length


def main() -> int:
    """Run all of it; 2 without an accelerator."""
    device = resolve_device("auto")
    if device.type == "cpu":
        print("gpu_smoke: this machine has no accelerator; run it on one that has")
        return 2
    started = time.perf_counter()
    passed = run_tests()
    cap_memory(device, CAP_BYTES)
    trainer = LocalTrainer(make_model(device), CONFIG, total_steps=9, ranks=Ranks(device=device))
    lengths = [2048, 1024, 1024] * 4
    first, second = (step_s(trainer, lengths, device) for _ in range(2))
    most = torch.accelerator.max_memory_allocated(device)
    print(
        f"one step of {sum(lengths):,} tokens: {first:.1f} s, then {second:.1f} s; at most "
        f"{most / 1e9:.2f} GB, {predicted(2048) / 1e9:.2f} GB predicted, "
        f"{memory(device).total_bytes / 1e9:.0f} GB on the device, {CAP_BYTES / 1e9:.0f} GB allowed"
    )
    print(f"the longest row that trains: {longest_row(trainer, device):,} tokens")
    print(f"{time.perf_counter() - started:.0f} s in all")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
