"""A request that runs across an update, in each pause mode: which weights its tokens are from."""

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel

from agentrl.engine.servers.control import PauseMode
from agentrl.engine.servers.engine import ServedEngine
from agentrl.envs import ToolEnv
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
)
from agentrl.tokens import Tokenizer
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling, StopReason, Task
from tests.contract.engine.conftest import Kind

pytestmark = pytest.mark.timeout(300)

PROMPT = list(range(300, 340))
LONG = Sampling(max_new_tokens=300)
TOOL_S = 5.0
STOPS = {0, 2}
"""Of the server's own; past one of them the rest is another request."""


def changed(model: PreTrainedModel) -> PreTrainedModel:
    """Other weights, such that each token's logprob tells which ones it is from."""
    other = deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    return other


def brief(model: PreTrainedModel) -> PreTrainedModel:
    """It says anything and stops, one token in twenty, whatever it reads."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        embedding = model.get_parameter("model.embed_tokens.weight")
        embedding[:, 0] = 1.0
        embedding[model.config.eos_token_id, 0] = 2.0
        # Normed, the hidden state is the root of its size: logits differ by the log of 768 / 20.
        model.get_parameter("model.norm.weight")[0] = 3.65 / embedding.shape[1] ** 0.5
    return model


def expected(
    models: "tuple[PreTrainedModel, PreTrainedModel]", ids: list[int], first: int, *, kept: bool
) -> NDArray[np.float64]:
    """Logprobs of the completion in `ids`, whose first tokens are the old model's.

    `kept`: the new one goes on with the old one's keys and values, else with its own.
    """
    old, new = models
    at = len(PROMPT) + first
    cache = DynamicCache()
    with torch.no_grad():
        begun = old(input_ids=torch.tensor([ids[: at - 1]]), cache=cache).logits[0]
        if not kept:
            cache = DynamicCache()
            new(input_ids=torch.tensor([ids[: at - 1]]), cache=cache)
        ended = new(input_ids=torch.tensor([ids[at - 1 : -1]]), cache=cache).logits[0]
    logits = torch.cat([begun[len(PROMPT) - 1 :], ended]).double()
    chosen = torch.tensor(ids[len(PROMPT) :])[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()


@pytest.fixture
async def paused_engine(
    kind: Kind, model: PreTrainedModel, request: pytest.FixtureRequest
) -> AsyncIterator[ServedEngine]:
    mode, way = request.param
    if kind.slow and mode != "retract":
        pytest.skip("the wire's own tests pause it so")
    made = kind.make(pause=mode, transport=kind.transports[way]())
    await made.start(ready_s=60, weights=ModelWeights(model))
    yield made
    await made.aclose()


@pytest.mark.parametrize("paused_engine", [("retract", 0)], indirect=True)
async def test_an_update_waits_for_no_completion(
    paused_engine: ServedEngine, kind: Kind, model: PreTrainedModel
) -> None:
    engine = paused_engine
    sampling = Sampling(max_new_tokens=1900)
    running = asyncio.ensure_future(engine.generate(PROMPT, sampling, EpisodeSession("a")))
    await kind.until_sampled(engine)
    await engine.update_weights(ModelWeights(changed(model)), 1)
    assert not running.done()
    completion = await running
    assert len(completion.ids_T) == 1900
    assert completion.versions_T[-1] == 1


class TakesItsTime(ToolEnv):
    """Whatever is said, it answers late."""

    tasks = (Task(prompt="What is 2 + 3?"),)
    answering: asyncio.Event

    async def reply(self, text: str) -> None:
        self.answering.set()
        await asyncio.sleep(TOOL_S)

    def score(self, answer: object) -> float:
        return 1.0


@pytest.mark.parametrize("paused_engine", [("retract", 0)], indirect=True)
async def test_an_update_waits_for_no_tool(
    paused_engine: ServedEngine, model: PreTrainedModel, tiny_folder: Path
) -> None:
    engine, TakesItsTime.answering = paused_engine, asyncio.Event()
    limits = EpisodeLimits(max_new_tokens=500, max_context_tokens=2040, wall_s=60, setup_s=5)
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency="auto", attempts=1, max_invalid_share=0.5
    )
    job = GroupJob(
        key=EpisodeKey.first(run=0, step=1, place=0),
        env="late",
        make_env=TakesItsTime,
        task=TakesItsTime.task_at(0, split="train", seed=0),
        split="train",
    )
    await engine.update_weights(ModelWeights(brief(model)), 1)
    codec = Codec(Tokenizer.load(tiny_folder))
    collector = Collector(engine=engine, codec=codec, settings=settings)
    playing = asyncio.ensure_future(gather_groups(collector.collect([job], group_size=2)))
    await asyncio.wait_for(TakesItsTime.answering.wait(), 60)
    await engine.update_weights(ModelWeights(changed(model)), 2)
    assert not playing.done()
    assert len((await playing).episodes) == 2


@pytest.mark.parametrize(
    ("paused_engine", "mode"),
    [
        (("retract", 0), "retract"),
        (("abort", 0), "abort"),
        (("in_place", 0), "in_place"),
        (("in_place", 1), "in_place"),
    ],
    indirect=["paused_engine"],
)
async def test_each_token_of_a_request_across_an_update_is_from_its_version(
    paused_engine: ServedEngine, kind: Kind, model: PreTrainedModel, mode: PauseMode
) -> None:
    engine, new = paused_engine, changed(model)
    running = [
        asyncio.ensure_future(engine.generate(PROMPT, LONG, EpisodeSession(name))) for name in "ab"
    ]
    await kind.until_sampled(engine, len(running))
    await engine.update_weights(ModelWeights(new), 1)
    for completion in await asyncio.gather(*running):
        assert len(completion.ids_T) == LONG.max_new_tokens
        assert completion.stop_reason is StopReason.LENGTH
        versions = completion.versions_T.tolist()
        first = versions.index(1)
        assert 0 < first < 300
        assert versions == [0] * first + [1] * (300 - first)
        ids = PROMPT + completion.ids_T.tolist()
        want = expected((model, new), ids, first, kept=mode == "in_place")
        gaps = np.abs(want - completion.logprobs_T)
        wrong = np.abs(
            expected((model, new), ids, first, kept=mode != "in_place") - completion.logprobs_T
        )
        if mode == "in_place":
            # One right before the update too: what follows begins anew under the new weights.
            rest: list[int] = completion.ids_T[first - 1 :].tolist() if kind.own_stops else []
            end = next((i for i, token in enumerate(rest, first) if token in STOPS), 300)
            gaps, wrong = gaps[:end], wrong[:end]
        assert gaps.max() < 1e-4
        assert first + 1 >= len(wrong) or wrong[first + 1 :].max() > 1e-2
    # Whoever begins later is sampled under the new weights alone, also with a prefix of before.
    later = await engine.generate(PROMPT, Sampling(max_new_tokens=16), EpisodeSession("c"))
    ids = PROMPT + later.ids_T.tolist()
    only_new = expected((new, new), ids, 1, kept=False)
    assert np.abs(only_new - later.logprobs_T).max() < 1e-4
    cached = await engine.generate(PROMPT, Sampling(max_new_tokens=1), EpisodeSession("d"))
    assert cached.cached_tokens > 0
