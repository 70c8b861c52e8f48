import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from transformers import LlamaForCausalLM, PreTrainedModel

from agentrl.engine import Engine
from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.errors import EngineError
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason
from tests.integration.engine.plain import VOCAB, random_llama, reference_logprobs, sampled

MEAN_GAP, MAX_GAP = 1e-5, 1e-3


@asynccontextmanager
async def local(
    model: PreTrainedModel,
    slots: int = 8,
    prefill_tokens: int = 64,
    timeout_s: float = 20.0,
    context_length: int = 0,
    share_weights: bool = False,
) -> AsyncGenerator[LocalEngine]:
    config = EngineConfig(
        slots=slots,
        prefill_tokens=prefill_tokens,
        timeout_s=timeout_s,
        context_length=context_length,
        share_weights=share_weights,
    )
    engine = LocalEngine(model, config)
    try:
        yield engine
    finally:
        await engine.aclose()


def some_ids(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(num)]


def gaps(model: PreTrainedModel, prompt: list[int], completion: Completion, t: float) -> np.ndarray:
    reference = reference_logprobs(model, prompt, completion.ids_T.tolist(), t)
    gap: np.ndarray = np.abs(reference - completion.logprobs_T)
    return gap


async def episode(
    engine: Engine, model: PreTrainedModel, prompt: list[int], seed: int, turns: int = 4
) -> list[np.ndarray]:
    rng = random.Random(seed)
    session, ids, found = EpisodeSession(f"e{seed}"), list(prompt), list[np.ndarray]()
    for turn in range(turns):
        temperature = rng.choice([0.5, 1.0, 1.3])
        sampling = Sampling(
            max_new_tokens=rng.randint(1, 12),
            stop_ids=frozenset({5, 6}),
            seed=100 * seed + turn,
            temperature=temperature,
        )
        completion = await engine.generate(ids, sampling, session)
        found.append(gaps(model, ids, completion, temperature))
        ids += completion.ids_T.tolist() + some_ids(rng, rng.randint(1, 25))
        await asyncio.sleep(rng.random() * 0.002)
    await engine.end_session(session)
    return found


@pytest.mark.parametrize(("slots", "prefill_tokens"), [(3, 16), (32, 512)])
async def test_logprobs_equal_a_plain_forward_pass(slots: int, prefill_tokens: int) -> None:
    """Ragged turns in groups, with evictions, chunked prompts and mixed temperatures."""
    model, rng = random_llama(), random.Random(1)
    prompts = [some_ids(rng, num) for num in (1, 2, 40, 70)]
    async with local(model, slots, prefill_tokens) as engine:
        jobs = [episode(engine, model, prompts[i // 3], i) for i in range(12)]
        found = np.concatenate([gap for gaps in await asyncio.gather(*jobs) for gap in gaps])
    assert len(found) > 100
    assert found.mean() < MEAN_GAP
    assert found.max() < MAX_GAP


async def test_a_turn_costs_its_new_tokens(llama: LlamaForCausalLM) -> None:
    async with local(llama) as engine:
        ids, session = some_ids(random.Random(0), 50), EpisodeSession("a")
        first = await engine.generate(ids, Sampling(max_new_tokens=10), session)
        assert first.cached_tokens == 0
        ids += [*first.ids_T.tolist(), 1, 2, 3]
        second = await engine.generate(ids, Sampling(max_new_tokens=1), session)
        # The last sampled token was never fed to the model: it is new, like the observation.
        assert second.cached_tokens == 59
        assert (await engine.health()).prefill_tokens == 50 + 4


async def test_a_prompt_shared_by_a_group_is_computed_once(llama: LlamaForCausalLM) -> None:
    ids = some_ids(random.Random(0), 60)
    async with local(llama, prefill_tokens=16) as engine:
        jobs = [
            engine.generate(ids, Sampling(max_new_tokens=3, seed=i), EpisodeSession(str(i)))
            for i in range(8)
        ]
        completions = await asyncio.gather(*jobs)
        assert sorted(c.cached_tokens for c in completions) == [0] + [59] * 7
        assert (await engine.health()).prefill_tokens == 60 + 7
    found = np.concatenate([gaps(llama, ids, completion, 1.0) for completion in completions])
    assert found.max() < MAX_GAP


async def test_an_evicted_session_is_computed_again(llama: LlamaForCausalLM) -> None:
    rng = random.Random(0)
    async with local(llama, slots=1) as engine:
        first = await engine.generate(
            ids := some_ids(rng, 20), Sampling(max_new_tokens=5), EpisodeSession("a")
        )
        await engine.generate(some_ids(rng, 20), Sampling(max_new_tokens=5), EpisodeSession("b"))
        ids += first.ids_T.tolist()
        again = await engine.generate(ids, Sampling(max_new_tokens=5), EpisodeSession("a"))
    assert again.cached_tokens < 5
    assert gaps(llama, ids, again, 1.0).max() < MAX_GAP


async def test_history_that_was_rewritten_is_computed_again(llama: LlamaForCausalLM) -> None:
    ids = some_ids(random.Random(0), 30)
    async with local(llama) as engine:
        await engine.generate(ids, Sampling(max_new_tokens=5), EpisodeSession("a"))
        changed = [*ids[:12], (ids[12] + 1) % VOCAB, *ids[13:25]]
        completion = await engine.generate(changed, Sampling(max_new_tokens=5), EpisodeSession("a"))
    assert completion.cached_tokens == 12
    assert gaps(llama, changed, completion, 1.0).max() < MAX_GAP


async def test_a_completion_follows_from_its_seed_alone(llama: LlamaForCausalLM) -> None:
    ids, rng = some_ids(random.Random(0), 20), random.Random(1)
    sampling = Sampling(max_new_tokens=20, seed=2**70 + 7)
    async with local(llama) as engine:
        alone = await engine.generate(ids, sampling, EpisodeSession("a"))
        others = [
            engine.generate(
                some_ids(rng, 9), Sampling(max_new_tokens=15, seed=i), EpisodeSession(f"o{i}")
            )
            for i in range(6)
        ]
        crowded, *_ = await asyncio.gather(
            engine.generate(ids, sampling, EpisodeSession("b")), *others
        )
        other = await engine.generate(ids, Sampling(max_new_tokens=20, seed=8), EpisodeSession("c"))
    assert alone.ids_T.tolist() == crowded.ids_T.tolist()
    assert alone.ids_T.tolist() != other.ids_T.tolist()


async def test_temperature_zero_takes_the_most_likely(llama: LlamaForCausalLM) -> None:
    ids = some_ids(random.Random(0), 20)
    async with local(llama) as engine:
        greedy, sampled = await asyncio.gather(
            engine.generate(ids, Sampling(max_new_tokens=12, temperature=0.0), EpisodeSession("a")),
            engine.generate(ids, Sampling(max_new_tokens=12, seed=3), EpisodeSession("b")),
        )
    assert gaps(llama, ids, greedy, 1.0).max() < MAX_GAP
    assert greedy.logprobs_T.sum() > sampled.logprobs_T.sum()
    first = [reference_logprobs(llama, ids, [token])[0] for token in range(VOCAB)]
    assert int(np.argmax(first)) == greedy.ids_T[0]


async def test_why_a_completion_ends(llama: LlamaForCausalLM) -> None:
    ids = some_ids(random.Random(0), 20)
    async with local(llama, context_length=32) as engine:
        stop_ids = frozenset(range(0, VOCAB, 3))
        stopped = await engine.generate(
            ids, Sampling(max_new_tokens=12, stop_ids=stop_ids, seed=1), EpisodeSession("a")
        )
        assert stopped.stop_reason is StopReason.STOP
        assert [token in stop_ids for token in stopped.ids_T.tolist()].index(True) == (
            len(stopped.ids_T) - 1
        )
        cut = await engine.generate(ids, Sampling(max_new_tokens=5), EpisodeSession("b"))
        assert (cut.stop_reason, len(cut.ids_T)) == (StopReason.LENGTH, 5)
        full = await engine.generate(ids, Sampling(max_new_tokens=50), EpisodeSession("c"))
        assert (full.stop_reason, len(full.ids_T)) == (StopReason.LENGTH, 12)


@pytest.mark.parametrize(
    ("ids", "sampling", "message"),
    [
        ([], Sampling(max_new_tokens=1), "empty prompt"),
        ([3, VOCAB], Sampling(max_new_tokens=1), f"got id {VOCAB}, expected 0 to {VOCAB - 1}"),
        ([3, -1], Sampling(max_new_tokens=1), "got id -1"),
        ([3] * 64, Sampling(max_new_tokens=1), "got 64 tokens, but the context holds 64"),
        ([3], Sampling(max_new_tokens=0), "cannot sample 0 tokens"),
        ([3], Sampling(max_new_tokens=1, temperature=-1.0), "temperature -1.0"),
    ],
)
async def test_requests_that_cannot_be_served(
    llama: LlamaForCausalLM, ids: list[int], sampling: Sampling, message: str
) -> None:
    async with local(llama, context_length=64) as engine:
        with pytest.raises(EngineError, match=message):
            await engine.generate(ids, sampling, EpisodeSession("a"))
        assert (await engine.health()).alive


async def test_two_requests_of_one_session_are_refused(llama: LlamaForCausalLM) -> None:
    async with local(llama) as engine:
        first = asyncio.create_task(
            engine.generate([3], Sampling(max_new_tokens=60), EpisodeSession("a"))
        )
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="'a' already has a running request"):
            await engine.generate([3], Sampling(max_new_tokens=1), EpisodeSession("a"))
        assert len((await first).ids_T) == 60


async def test_abort_returns_what_was_sampled(llama: LlamaForCausalLM) -> None:
    async with local(llama, slots=1) as engine:
        tasks = [
            asyncio.create_task(
                engine.generate([3, 4], Sampling(max_new_tokens=500), EpisodeSession(key))
            )
            for key in ("running", "waiting")
        ]
        await sampled(engine, 3)
        await engine.abort(EpisodeSession("waiting"))
        await engine.abort(EpisodeSession("running"))
        running, waiting = await asyncio.gather(*tasks)
        assert running.stop_reason is waiting.stop_reason is StopReason.ABORT
        assert len(waiting.ids_T) == 0
        assert 3 <= len(running.ids_T) < 500
        assert gaps(llama, [3, 4], running, 1.0).max() < MAX_GAP


async def test_a_cancelled_request_frees_its_slot(llama: LlamaForCausalLM) -> None:
    async with local(llama, slots=1) as engine:
        task = asyncio.create_task(
            engine.generate([3], Sampling(max_new_tokens=500), EpisodeSession("a"))
        )
        await sampled(engine, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            await engine.generate([4], Sampling(max_new_tokens=1), EpisodeSession("b"))
        assert (await engine.health()).running == 0


async def test_a_request_ends_by_its_deadline(llama: LlamaForCausalLM) -> None:
    async with local(llama, timeout_s=0.05) as engine:
        with pytest.raises(EngineError, match=r"no completion within 0\.05 s"):
            await engine.generate([3], Sampling(max_new_tokens=500), EpisodeSession("a"))
        await engine.resume()
        assert (await engine.health()).running == 0


@pytest.mark.parametrize("slots", [1, 3, 32])
async def test_what_a_session_left_is_the_prefix_of_another(
    llama: LlamaForCausalLM, slots: int
) -> None:
    """Each turn is a session of its own; the cache finds what those before it computed."""

    async def talk(engine: LocalEngine, number: int) -> int:
        rng = random.Random(number)
        ids, cached = some_ids(rng, 20), 0
        for turn in range(4):
            session = EpisodeSession(f"{number}.{turn}")
            sampling = Sampling(max_new_tokens=rng.randint(1, 12), seed=turn)
            completion = await engine.generate(ids, sampling, session)
            engine.leave(session)
            assert gaps(llama, ids, completion, 1.0).max() < MAX_GAP
            cached += completion.cached_tokens
            ids += completion.ids_T.tolist() + some_ids(rng, 5)
        return cached

    async with local(llama, slots=slots) as engine:
        alone = await talk(engine, 0)
        assert alone >= 20 + 25 + 30
        together = await asyncio.gather(*(talk(engine, number) for number in range(1, 9)))
        assert slots < 32 or min(together) >= 20 + 25 + 30


async def test_nothing_is_sampled_while_paused(llama: LlamaForCausalLM) -> None:
    async with local(llama) as engine:
        task = asyncio.create_task(
            engine.generate([3], Sampling(max_new_tokens=90), EpisodeSession("a"))
        )
        await sampled(engine, 3)
        await engine.pause()
        before = (await engine.health()).sampled_tokens
        await asyncio.sleep(0.02)
        assert (await engine.health()).sampled_tokens == before
        await engine.resume()
        assert len((await task).ids_T) == 90


async def test_closing_fails_what_runs(llama: LlamaForCausalLM) -> None:
    async with local(llama) as engine:
        task = asyncio.create_task(
            engine.generate([3], Sampling(max_new_tokens=500), EpisodeSession("a"))
        )
        await asyncio.sleep(0.01)
        await engine.aclose()
        with pytest.raises(EngineError, match="closed"):
            await task
        with pytest.raises(EngineError, match="closed"):
            await engine.generate([3], Sampling(max_new_tokens=1), EpisodeSession("b"))
        assert not (await engine.health()).alive


class Breaking(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if (kwargs["input_ids"] == 13).any():
            raise RuntimeError("thirteen")
        return super().forward(*args, **kwargs)


async def test_a_dead_thread_fails_every_request() -> None:
    model = Breaking(random_llama().config)
    async with local(model, slots=2) as engine:
        found = await asyncio.gather(
            engine.generate([3], Sampling(max_new_tokens=500), EpisodeSession("running")),
            engine.generate([3, 13], Sampling(max_new_tokens=1), EpisodeSession("breaking")),
            engine.generate([3], Sampling(max_new_tokens=500), EpisodeSession("waiting")),
            return_exceptions=True,
        )
        for error in found:
            assert isinstance(error, EngineError)
            assert "thread died: RuntimeError: thirteen" in str(error)
        assert not (await engine.health()).alive
        with pytest.raises(EngineError, match="thirteen"):
            await engine.pause()


async def test_numbers_that_are_not_finite_fail_one_request_only() -> None:
    model = random_llama()
    bad, good = 7, 8
    model.lm_head.weight = type(model.lm_head.weight)(model.lm_head.weight.detach().clone())
    with_nan = model.model.embed_tokens.weight.detach()
    with_nan[bad] = float("nan")
    async with local(model, slots=2) as engine:
        first, second = await asyncio.gather(
            engine.generate([good, bad, good], Sampling(max_new_tokens=1), EpisodeSession("a")),
            engine.generate(
                [good, good], Sampling(max_new_tokens=4, stop_ids=frozenset()), EpisodeSession("b")
            ),
            return_exceptions=True,
        )
        assert isinstance(first, EngineError)
        assert "not finite" in str(first)
        assert isinstance(second, Completion)
        again = await engine.generate([good] * 9, Sampling(max_new_tokens=1), EpisodeSession("c"))
        assert np.isfinite(again.logprobs_T).all()
