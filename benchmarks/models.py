"""Which architectures of transformers are computed as their own code does, by tiny random models.

    python benchmarks/models.py [--only llama,gpt_oss] [--write docs/models.md]

Each model plays six episodes of three turns with the local engine, four of which begin alike in
pairs, and is updated once with what came of them. The table shows the largest difference in nats
between the engine and the model's own code (one row at a time, eager attention), and between the
trainer and the engine; which share of the tokens was computed for an earlier row already; which
share of the matrices LoRA adapts; in how many layers the choice of experts is replayed. Or the
sentence with which the model is refused.

Exits with 1 where a difference is above `MAX_GAP`. With `--write` the table of a file is replaced.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import argparse
import asyncio
import copy
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import CHANNEL
from agentrl.engine.local.demands import attending
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import ConfigError
from agentrl.rollout import make_batch
from agentrl.tokens import TokenRecord
from agentrl.trainer import TrainerConfig
from agentrl.trainer.algorithms.advantages.group_relative import grpo
from agentrl.trainer.algorithms.normalisations import token_mean
from agentrl.trainer.packing import num_read, pack
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import (
    Episode,
    EpisodeSession,
    EpisodeStop,
    Sampling,
    Score,
    Segment,
    Task,
    TurnRecord,
)
from benchmarks.architectures import ARCHITECTURES, COMMON, NO_DROPOUT

MAX_GAP = 1e-3
"""Nats; in float32."""
HEADER = (
    "| architecture | engine gap | trainer gap | tokens shared | LoRA adapts | replayed layers |\n"
    "|---|---|---|---|---|---|"
)
TURNS, TURN_TOKENS = 3, 8
WIDE = {"ratio_band": {"mean": 1e9, "max": 1e9}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one architecture came to."""

    engine_gap: float
    trainer_gap: float
    shared: float
    """The share of the tokens that was not computed again."""
    adapted: str
    replayed: str

    @property
    def columns(self) -> str:
        """As a line of the table ends."""
        gaps = f"{self.engine_gap:.0e} | {self.trainer_gap:.0e}"
        return f"{gaps} | {self.shared:.0%} | {self.adapted} | {self.replayed} |"


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ARCHITECTURES))
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lines, wrong = [HEADER], 0
    print(HEADER)
    for name in args.only.split(","):
        found = measure(name)
        lines.append(table_line(name, found))
        print(lines[-1], flush=True)
        if isinstance(found, Found):
            wrong += not max(found.engine_gap, found.trainer_gap) <= MAX_GAP
    if args.write is not None:
        write_table(args.write, lines)
    return int(wrong > 0)


def table_line(name: str, found: Found | str) -> str:
    """A line of the table: measured, or refused."""
    columns = found.columns if isinstance(found, Found) else f"{found} | | | | |"
    return f"| {name} | {columns}"


def write_table(path: Path, lines: Sequence[str]) -> None:
    """Put the table in the place of the one that is there."""
    before, _, rest = path.read_text().partition(HEADER)
    after = rest.lstrip("\n").split("\n")
    while after and after[0].startswith("|"):
        after.pop(0)
    path.write_text(before + "\n".join([*lines, *after]))


def measure(name: str) -> Found | str:
    """What the architecture comes to, or the sentence with which it is refused."""
    model = make_model(name)
    config = EngineConfig(slots=4, prefill_tokens=16, share_weights=False)
    try:
        engine = LocalEngine(copy.deepcopy(model), config)
        trainer = LocalTrainer(
            copy.deepcopy(model), TrainerConfig.model_validate(WIDE), total_steps=2
        )
    except ConfigError as error:
        return str(error)
    segments = asyncio.run(play(engine))
    batch = make_batch(list(make_episodes(segments)), temperature=1.0)
    batch = replace(batch, advantages_N=grpo(batch), weights_N=token_mean(batch))
    rows = range(batch.num_rows)
    total = sum(num_read(batch, row) for row in rows)
    stats = trainer.update(batch)
    layers = batch.channels[CHANNEL].shape[1] if CHANNEL in batch.channels else 0
    return Found(
        engine_gap=max(own_gap(model, segment) for segment in segments),
        trainer_gap=stats.gap_max,
        shared=1 - len(pack(batch, rows).ids_P) / total,
        adapted=adapt(model),
        replayed=str(layers) if layers else "",
    )


def make_config(name: str) -> PreTrainedConfig:
    """The small configuration of an architecture, without dropout."""
    kind, settings = ARCHITECTURES[name]
    plain = AutoConfig.for_model(kind)
    known = {key: value for key, value in NO_DROPOUT.items() if hasattr(plain, key)}
    return AutoConfig.for_model(kind, **{**COMMON, **known, **settings})


def make_model(name: str) -> PreTrainedModel:
    """Random weights that are large enough for attention to matter."""
    torch.manual_seed(0)
    with quiet():
        config = make_config(name)
        kinds: Any = AutoModelForCausalLM
        model: PreTrainedModel = kinds.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.train(False)
    return model


async def play(engine: LocalEngine) -> list[Segment]:
    """Episodes all at once, of lengths from 40 to 110 tokens."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(engine.vocab_size, size=n).tolist() for n in (40, 40, 3, 24, 24, 60)]
    prompts[1], prompts[4] = prompts[0], [*prompts[3][:16], *prompts[4][16:]]
    try:
        return await asyncio.gather(*(episode(engine, i, ids) for i, ids in enumerate(prompts)))
    finally:
        await engine.aclose()


async def episode(engine: LocalEngine, number: int, prompt: list[int]) -> Segment:
    """Turns with an answer of the environment between."""
    record = TokenRecord(engine.vocab_size)
    record.append_prompt(prompt)
    for turn in range(TURNS):
        if turn:
            record.append_environment([number, turn, 7, 9])
        sampling = Sampling(max_new_tokens=TURN_TOKENS, seed=TURNS * number + turn)
        session = EpisodeSession(str(number))
        record.append_sampled(await engine.generate(record.ids, sampling, session))
    return record.close()


def make_episodes(segments: Sequence[Segment]) -> Iterator[Episode]:
    """Every second one is rewarded."""
    for number, segment in enumerate(segments):
        yield Episode(
            id=str(number),
            env="models",
            task=Task(prompt="models"),
            split="train",
            group=0,
            member=number,
            attempt=0,
            seed=0,
            segments=(segment,),
            messages=(),
            turns=tuple(TurnRecord(reward=0) for _ in range(TURNS)),
            stop=EpisodeStop.ANSWERED,
            outcome=Score(value=number % 2),
        )


def own_gap(model: PreTrainedModel, segment: Segment) -> float:
    """The largest difference of recorded logprobs from the model's own, with the row alone."""
    ids_T = torch.from_numpy(segment.ids_T.astype(np.int64))
    with torch.no_grad(), attending(model, "eager"):
        logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0, :-1]
    logprobs_T = torch.log_softmax(logits_TV, dim=-1).gather(1, ids_T[1:, None])[:, 0].numpy()
    return float(np.abs(logprobs_T - segment.logprobs_T[1:])[segment.mask_T[1:]].max())


def adapt(model: PreTrainedModel) -> str:
    """Which part of the matrices between embedding and head gets adapters, or why none does."""
    config = TrainerConfig.model_validate({"lora": {"rank": 1}})
    whole: Any = model
    ends = {id(whole.get_input_embeddings().weight), id(whole.get_output_embeddings().weight)}
    total = sum(p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in ends)
    try:
        trained = LocalTrainer(copy.deepcopy(model), config, total_steps=1).model
    except ConfigError as error:
        return str(error)
    frozen = dict(trained.named_parameters())
    adapted = sum(
        value.numel()
        for name, value in frozen.items()
        if f"{name.removesuffix('base_layer.weight')}lora_A.default.weight" in frozen
    )
    return f"{adapted / total:.0%}"


if __name__ == "__main__":
    sys.exit(main())
