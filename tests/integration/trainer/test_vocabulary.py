"""Rows of a model's matrix that belong to no token: neither sampled nor a part of the softmax."""

import asyncio
from typing import Any

import pytest

from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import limit_ids
from agentrl.errors import ConfigError
from agentrl.tokens import TokenRecord
from agentrl.trainer import TrainerConfig
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Completion, EpisodeSession, Sampling, Segment
from tests.unit.trainer.batches import VOCAB, batch_of, tiny_model

PROMPTS = ((1, 2, 3), (4, 5), (6, 7, 8, 9))


async def sample(model: Any) -> list[Completion]:
    engine = LocalEngine(model)
    try:
        return await asyncio.gather(
            *(
                engine.generate(
                    prompt, Sampling(max_new_tokens=40, seed=seed), EpisodeSession(str(seed))
                )
                for seed, prompt in enumerate(PROMPTS)
            )
        )
    finally:
        await engine.aclose()


@pytest.mark.parametrize("bias", [False, True])
async def test_such_rows_are_left_out_by_engine_and_trainer_alike(bias: bool) -> None:
    model = tiny_model(vocab=3 * VOCAB, tied=False, bias=bias)
    assert any(max(each.ids_T) >= VOCAB for each in await sample(model))
    limit_ids(model, VOCAB)
    before = model.lm_head.weight.detach().clone()
    completions = await sample(model)
    assert all(max(each.ids_T) < VOCAB for each in completions)
    segments: list[Segment] = []
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        record = TokenRecord(VOCAB)
        record.append_prompt(prompt)
        record.append_sampled(completion)
        segments.append(record.close())
    trainer = LocalTrainer(model, TrainerConfig(lr=1e-2, weight_decay=0.0), total_steps=1)
    ids = [*PROMPTS[0], *completions[0].ids_T.tolist()]
    assert trainer.logprobs(ids)[2:] == pytest.approx(completions[0].logprobs_T, abs=1e-5)
    stats = trainer.update(batch_of(segments, advantages=(1, -1, 1)))
    assert stats.gap_max < 1e-5
    moved = (model.lm_head.weight.detach() != before).any(1)
    assert bool(moved[:VOCAB].all())
    assert not bool(moved[VOCAB:].any())


def test_fewer_rows_than_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"has {VOCAB + 1} ids, .* has {VOCAB} rows"):
        limit_ids(tiny_model(), VOCAB + 1)
