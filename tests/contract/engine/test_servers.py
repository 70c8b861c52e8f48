"""What is sent to a server, what comes back, and the traps between: the same for each server."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agentrl.engine.servers.check import check_server
from agentrl.engine.servers.engine import ServedEngine
from agentrl.errors import EngineError
from agentrl.tokens import Tokenizer
from agentrl.trainer.logprobs import sequence_logprobs
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason
from tests.contract.engine.conftest import Kind

pytestmark = pytest.mark.timeout(300)

PROMPT = list(range(300, 340))
STOP, END_OF_TEXT = 2, 0


def gap(model: PreTrainedModel, completion: Completion, temperature: float = 1.0) -> float:
    ids = PROMPT + completion.ids_T.tolist()
    ours = np.array(sequence_logprobs(model, ids, temperature))[len(PROMPT) - 1 :]
    return float(np.abs(ours - completion.logprobs_T).max())


def change(model: PreTrainedModel, factor: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


def prefer(model: PreTrainedModel, token: int) -> None:
    """Make the model sample one token always: one dimension is the same everywhere, and its."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter[0] = 0.0
        weight = model.get_parameter("model.embed_tokens.weight")
        weight[:, 0] = 1.0
        weight[token, 0] = 5.0
        model.get_parameter("model.norm.weight").zero_()[0] = 50.0


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
async def test_logprobs_are_the_models_after_the_temperature(
    served: ServedEngine, model: PreTrainedModel, temperature: float
) -> None:
    sampling = Sampling(max_new_tokens=24, temperature=temperature)
    completion = await served.generate(PROMPT, sampling, EpisodeSession("a"))
    assert gap(model, completion, temperature) < 1e-4
    assert completion.versions_T.tolist() == [0] * len(completion.ids_T)


async def test_a_greedy_completion_is_the_most_likely_one(
    served: ServedEngine, model: PreTrainedModel
) -> None:
    completion = await served.generate(
        PROMPT, Sampling(max_new_tokens=4, temperature=0), EpisodeSession("a")
    )
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    assert completion.ids_T[0] == int(logits.argmax())
    assert gap(model, completion) < 1e-4


async def test_the_stop_token_is_the_last_id(served: ServedEngine) -> None:
    sampling = Sampling(max_new_tokens=200, stop_ids=frozenset(range(0, 768, 3)))
    completion = await served.generate(PROMPT, sampling, EpisodeSession("a"))
    ids = completion.ids_T.tolist()
    assert completion.stop_reason is StopReason.STOP
    assert ids[-1] % 3 == 0
    assert not any(i % 3 == 0 for i in ids[:-1])


async def test_sampling_goes_on_past_a_stop_token_of_the_servers_own(
    served: ServedEngine, kind: Kind, model: PreTrainedModel
) -> None:
    prefer(model, END_OF_TEXT)
    await served.update_weights(ModelWeights(model), 1)
    sampling = Sampling(max_new_tokens=5, stop_ids=frozenset({STOP}))
    completion = await served.generate(PROMPT, sampling, EpisodeSession("a"))
    assert completion.ids_T.tolist() == [END_OF_TEXT] * 5
    assert completion.stop_reason is StopReason.LENGTH
    assert served.slots[0].stats.requests == (5 if kind.own_stops else 1)


async def test_a_session_finds_its_prefix_cached(served: ServedEngine, kind: Kind) -> None:
    session, sampling = EpisodeSession("a"), Sampling(max_new_tokens=8)
    first = await served.generate(PROMPT, sampling, session)
    ids = [*PROMPT, *first.ids_T.tolist(), 5, 6]
    second = await served.generate(ids, sampling, session)
    assert second.cached_tokens >= (len(PROMPT) + 6) // kind.block * kind.block
    health = await served.health()
    # More, where the server stopped at a token of its own and was asked to go on.
    assert health.cached_tokens >= first.cached_tokens + second.cached_tokens
    assert health.sampled_tokens == len(first.ids_T) + len(second.ids_T)


async def test_the_context_holds_exactly_what_it_says(served: ServedEngine) -> None:
    for missing in (1, 4):
        ids = [5] * (served.context_length - missing)
        completion = await served.generate(ids, Sampling(max_new_tokens=100), EpisodeSession("a"))
        assert len(completion.ids_T) == missing
    full = served.context_length
    with pytest.raises(EngineError, match=f"holds {full}"):
        await served.generate([5] * full, Sampling(max_new_tokens=1), EpisodeSession("a"))


@pytest.mark.parametrize("bad", [-1, 768, 99_999_999])
async def test_an_id_outside_the_vocabulary_never_reaches_the_server(
    served: ServedEngine, bad: int
) -> None:
    with pytest.raises(EngineError, match=f"got id {bad}, expected 0 to 767"):
        await served.generate([5, bad], Sampling(max_new_tokens=1), EpisodeSession("a"))
    assert (await served.health()).alive


@pytest.mark.parametrize("way", range(3))
async def test_new_weights_are_sampled_under_their_version(
    kind: Kind, model: PreTrainedModel, way: int
) -> None:
    if way >= len(kind.transports):
        pytest.skip("this server takes them in fewer ways")
    other = kind.make(transport=kind.transports[way]())
    await other.start(ready_s=60, weights=ModelWeights(model))
    try:
        await other.generate(PROMPT, Sampling(max_new_tokens=4), EpisodeSession("a"))
        change(model, 1.05)
        await other.update_weights(ModelWeights(model), 1)
        completion = await other.generate(PROMPT, Sampling(max_new_tokens=16), EpisodeSession("a"))
        assert completion.cached_tokens == 0, "keys and values of the old weights were used"
        assert set(completion.versions_T.tolist()) == {1}
        assert gap(model, completion) < 1e-4
        with pytest.raises(EngineError, match="expected one above 1"):
            await other.update_weights(ModelWeights(model), 1)
        await other.update_weights(ModelWeights(model), 2)
    finally:
        await other.aclose()


async def test_a_version_across_an_update_is_known_token_by_token(
    served: ServedEngine, kind: Kind, model: PreTrainedModel
) -> None:
    running = asyncio.ensure_future(
        served.generate(PROMPT, Sampling(max_new_tokens=1000), EpisodeSession("a"))
    )
    await kind.until_sampled(served)
    await served.pause()
    change(model, 1.01)
    await served.update_weights(ModelWeights(model), 1)
    await served.resume()
    versions = (await running).versions_T.tolist()
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}


async def test_weights_of_another_shape_change_nothing(
    served: ServedEngine, model: PreTrainedModel
) -> None:
    before = await served.generate(
        PROMPT, Sampling(max_new_tokens=8, temperature=0), EpisodeSession("a")
    )

    class Short:
        def named_tensors(self) -> object:
            return list(ModelWeights(model).named_tensors())[1:]

    with pytest.raises(EngineError, match=r"differ from the model's in model\.embed_tokens"):
        await served.update_weights(Short(), 1)  # type: ignore[arg-type]  # a list will do
    after = await served.generate(
        PROMPT, Sampling(max_new_tokens=8, temperature=0), EpisodeSession("a")
    )
    assert after.ids_T.tolist() == before.ids_T.tolist()
    assert after.versions_T.tolist() == [0] * len(after.ids_T)


async def test_an_abort_returns_what_there_is(served: ServedEngine, kind: Kind) -> None:
    session = EpisodeSession("a")
    running = asyncio.ensure_future(served.generate(PROMPT, Sampling(max_new_tokens=1900), session))
    other = asyncio.ensure_future(
        served.generate(PROMPT, Sampling(max_new_tokens=500), EpisodeSession("b"))
    )
    await kind.until_sampled(served, 2)
    await served.abort(session)
    completion = await running
    assert completion.stop_reason is StopReason.ABORT
    assert 0 < len(completion.ids_T) < 1900
    assert len(completion.logprobs_T) == len(completion.ids_T)
    assert (await other).stop_reason is StopReason.LENGTH


async def test_an_abort_while_paused_is_not_lost(served: ServedEngine, kind: Kind) -> None:
    running = asyncio.ensure_future(
        served.generate(PROMPT, Sampling(max_new_tokens=1900), EpisodeSession("a"))
    )
    await kind.until_sampled(served)
    await served.pause()
    waiting = asyncio.ensure_future(
        served.generate(PROMPT, Sampling(max_new_tokens=5), EpisodeSession("b"))
    )
    await asyncio.sleep(0.1)
    assert await served.slots[0].control.healthy(), "a paused server is no sick one"
    await served.abort(EpisodeSession("b"))
    assert len((await waiting).ids_T) == 0
    await served.resume()
    await served.abort(EpisodeSession("a"))
    assert (await running).stop_reason is StopReason.ABORT


async def test_a_cancelled_request_ends_on_the_server_too(served: ServedEngine, kind: Kind) -> None:
    running = asyncio.ensure_future(
        served.generate(PROMPT, Sampling(max_new_tokens=1900), EpisodeSession("a"))
    )
    await kind.until_sampled(served)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(50):
        await served.generate([5, 6], Sampling(max_new_tokens=1), EpisodeSession("b"))
        if not await kind.running():
            return
        await asyncio.sleep(0.2)
    pytest.fail("the server went on sampling for nobody")


async def test_a_request_that_takes_too_long_says_that_the_server_lives(kind: Kind) -> None:
    slow = kind.make(timeout_s=0.3)
    await slow.start(ready_s=60)
    with pytest.raises(EngineError, match=r"no completion within 0\.3 s; the server is alive"):
        await slow.generate(PROMPT, Sampling(max_new_tokens=1900), EpisodeSession("a"))
    await slow.aclose()


async def test_a_fit_server_passes_every_check(
    served: ServedEngine, model: PreTrainedModel, tiny_folder: Path
) -> None:
    rows = await check_server(
        served.slots[0],
        Tokenizer.load(tiny_folder),
        vocab_size=768,
        reference=lambda ids, temperature: sequence_logprobs(model, list(ids), temperature),
    )
    assert [row.name for row in rows if not row.ok] == []
    assert len(rows) == 8


async def test_a_server_with_other_weights_fails_the_check(
    served: ServedEngine, model: PreTrainedModel, tiny_folder: Path
) -> None:
    change(model, 1.2)
    rows = await check_server(
        served.slots[0],
        Tokenizer.load(tiny_folder),
        vocab_size=768,
        reference=lambda ids, temperature: sequence_logprobs(model, list(ids), temperature),
    )
    assert [row.name for row in rows if not row.ok] == ["logprobs", "temperature"]
