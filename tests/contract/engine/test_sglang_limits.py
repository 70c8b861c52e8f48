"""A second real server with little room and keys, beside the first: refusals, failure, return."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.servers import fleet
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.process import Server
from agentrl.engine.servers.router import ServerState
from agentrl.engine.servers.weights import Named
from agentrl.engine.sglang.control import ADMIN_KEY, KEY
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import TensorTransport
from agentrl.engine.sglang.weights.transport import Target
from agentrl.errors import ConfigError, EngineError
from agentrl.trainer.logprobs import sequence_logprobs
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Completion, EpisodeSession, Sampling
from tests.contract.engine.conftest import READY_S
from tests.contract.engine.proxy import Proxy

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PROMPT = list(range(300, 340))
KV_TOKENS = 600
STOP_IDS = frozenset({0, 2})
"""Those of the server too, so that each completion is one request."""


@dataclass
class Small:
    """The second server, in whichever of its lives."""

    server: Server

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def leader(self) -> int:
        """Its first process, below its guard."""
        (child,) = psutil.Process(self.server.guard.pid).children()
        return child.pid

    def processes(self) -> list[psutil.Process]:
        leader = psutil.Process(self.leader)
        return [leader, *leader.children(recursive=True)]


@pytest.fixture(scope="module")
def small(
    server: Server, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Small]:
    """A server with a cache of 600 tokens, a queue of one, and two keys."""
    extra = "--max-running-requests 2 --max-queued-requests 1"
    config = EngineConfig(sglang=SglangConfig(kv_tokens=KV_TOKENS, extra_args=extra))
    logs = tmp_path_factory.mktemp("logs")
    made = Small(start(config, tiny_folder, logs, keys=Keys("user-word", "admin-word")))
    try:
        asyncio.run(made.server.wait_ready(READY_S))
        yield made
    finally:
        made.server.stop()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "user-word")
    monkeypatch.setenv(ADMIN_KEY, "admin-word")


@pytest.fixture
async def limited(small: Small, keys: None, model: PreTrainedModel) -> AsyncIterator[SglangEngine]:
    made = SglangEngine([small.url], vocab_size=768, context_length=2040, timeout_s=60)
    await made.start(ready_s=60)
    yield made
    await made.aclose()


async def test_a_wrong_key_is_named_by_its_variable(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SglangEngine([small.url], vocab_size=768, context_length=2040)
    with pytest.raises(ConfigError, match=f"401: Unauthorized; set .*{KEY}") as caught:
        await engine.start(ready_s=10)
    await engine.aclose()
    monkeypatch.setenv(KEY, "user-word")
    engine = SglangEngine([small.url], vocab_size=768, context_length=2040)
    with pytest.raises(ConfigError, match=f"401: Unauthorized; set {ADMIN_KEY}") as again:
        await engine.start(ready_s=10)
    await engine.aclose()
    assert "word" not in str(caught.value) + str(again.value)


async def test_a_completion_that_the_cache_cut_off_is_no_completion(limited: SglangEngine) -> None:
    with pytest.raises(EngineError, match=r"cut a completion at|exceeds the maximum"):
        await limited.generate(PROMPT, Sampling(max_new_tokens=1000), EpisodeSession("a"))


async def test_it_says_what_its_cache_holds_and_how_soon_it_is_computed(
    limited: SglangEngine,
) -> None:
    assert limited.capacity_tokens == KV_TOKENS
    unknown, started = limited.cache_fill_s, time.monotonic()
    await limited.measure_prefill()
    fill_s, seconds = limited.cache_fill_s, time.monotonic() - started
    assert unknown is None
    assert fill_s is not None
    assert 0 < fill_s < KV_TOKENS / 64 * seconds, "the shortest of its prompts has 64 tokens"
    limited.slots[0].fail("down", "the test says so")
    assert limited.capacity_tokens == 0


async def test_a_full_queue_is_waited_for(limited: SglangEngine) -> None:
    sampling = Sampling(max_new_tokens=40)
    runs = [limited.generate(PROMPT, sampling, EpisodeSession(f"s{i}")) for i in range(12)]
    completions = await asyncio.gather(*runs)
    assert all(len(completion.ids_T) == 40 for completion in completions)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is gone is soon started again."""
    monkeypatch.setattr(fleet, "REVIVE_S", 0.1)


class Killing(TensorTransport):
    """Kills a server when an update has begun, if told whom."""

    victim = 0

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        if self.victim:
            os.kill(self.victim, signal.SIGKILL)
            self.victim = 0
        return await super().send(targets, named, version, flush=flush)


@pytest.fixture
async def pair(
    server: Server, small: Small, keys: None, impatient: None, model: PreTrainedModel
) -> AsyncIterator[tuple[SglangEngine, Proxy, Killing]]:
    """An engine over both servers, the second one behind a proxy."""
    transport = Killing(timeout_s=10.0)
    proxy = Proxy(small.url)
    async for _ in proxy.run():
        engine = SglangEngine(
            [server.url, replace(small.server, url=proxy.url)],
            vocab_size=768,
            context_length=2040,
            transport=transport,
            timeout_s=60,
            control_s=5,
            deadline_s=12,  # a busy machine's server may take 2 s to answer
        )
        await engine.start(ready_s=READY_S, weights=ModelWeights(model))
        yield engine, proxy, transport
        for process in small.processes() if small.server.alive else ():
            process.send_signal(signal.SIGCONT)  # a test that failed may have left it standing
        second = engine.slots[1]
        assert second.server is not None
        small.server, second.server = replace(second.server, url=small.url), None
        await engine.aclose()


async def sample(engine: SglangEngine, name: str, num: int = 30) -> Completion:
    sampling = Sampling(max_new_tokens=num, stop_ids=STOP_IDS)
    return await engine.generate(PROMPT, sampling, EpisodeSession(name))


async def versions(engine: SglangEngine, names: str, num: int = 30) -> list[set[int]]:
    completions = await asyncio.gather(*(sample(engine, name, num) for name in names))
    return [set(completion.versions_T.tolist()) for completion in completions]


def state(slot: ServerState) -> str:
    return slot.state


async def until(slot: ServerState, wanted: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while slot.state != wanted:
        assert time.monotonic() < end, f"the server is {slot.state}, not {wanted}: {slot.why}"
        await asyncio.sleep(0.1)


def gap(model: PreTrainedModel, completion: Completion) -> float:
    ids = PROMPT + completion.ids_T.tolist()
    ours = np.array(sequence_logprobs(model, ids, 1.0))[len(PROMPT) - 1 :]
    return float(np.abs(ours - completion.logprobs_T).max())


def change(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)


@pytest.mark.nightly
async def test_two_servers_of_which_one_fails_stands_still_and_dies(
    pair: tuple[SglangEngine, Proxy, Killing], small: Small, model: PreTrainedModel
) -> None:
    engine, proxy, transport = pair
    first, second = engine.slots

    # New sessions go to whoever has least to do, and stay there.
    await versions(engine, "abcd")
    assert first.stats.requests == second.stats.requests == 2
    await versions(engine, "abcd")
    assert first.stats.requests == second.stats.requests == 4

    # It refuses an update, or says that it took one and did not: twice, and it is left out until
    # the next; once, and it gets it again.
    proxy.path = "/update_weights_from_tensor"
    for version, fault in ((1, "500"), (3, "swallowed")):
        proxy.faults = [fault, fault]
        change(model)
        await engine.update_weights(ModelWeights(model), version)
        assert state(second) == "stale"
        assert ("made up" if fault == "500" else "other numbers") in second.reason
        assert await versions(engine, "abcd") == [{version}] * 4
        proxy.faults = [fault]
        await engine.update_weights(ModelWeights(model), version + 1)
        assert state(second) == "serving"

    # It stands still: what waits for it is asked of the other one. The sessions are new ones, since
    # those before have moved to the first server and stay there. It is not to be started again yet.
    second.restarts_left = 0
    before = second.stats.requests
    await versions(engine, "qrst")
    assert second.stats.requests == before + 2
    for process in small.processes():
        process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    assert await versions(engine, "qrst", 300) == [{4}] * 4
    assert time.monotonic() - started < 30
    assert state(second) == "down"

    # It misses an update; when it goes on, it gets the weights of now before it serves.
    change(model)
    await engine.update_weights(ModelWeights(model), 5)
    for process in small.processes():
        process.send_signal(signal.SIGCONT)
    await until(second, "serving")
    assert await versions(engine, "efgh") == [{5}] * 4

    # It stands still in the middle of an update: left out, and the run goes on.
    for process in small.processes():
        process.send_signal(signal.SIGSTOP)
    second.serve()
    await engine.update_weights(ModelWeights(model), 6)
    assert state(second) != "serving"
    assert await versions(engine, "y") == [{6}]
    for process in small.processes():
        process.send_signal(signal.SIGCONT)

    # It is killed in the middle of an update, while both sample: nobody notices.
    await until(second, "serving")
    await engine.update_weights(ModelWeights(model), 7)
    processes = small.processes()
    running = asyncio.gather(*(sample(engine, name, 300) for name in "ijkl"))
    await asyncio.sleep(0.3)
    change(model)
    transport.victim = small.leader
    await engine.update_weights(ModelWeights(model), 8)
    assert (state(first), engine.version) == ("serving", 8)
    assert state(second) != "serving"
    seen = {version for c in await running for version in c.versions_T.tolist()}
    assert {8} <= seen <= {7, 8}
    await asyncio.to_thread(small.server.guard.wait, 30)
    assert not any(process.is_running() and process.status() != "zombie" for process in processes)

    # It is started again and has the weights of now, which are not those of its folder.
    await until(second, "serving", READY_S)
    before = second.stats.requests
    completions = await asyncio.gather(*(sample(engine, name) for name in "mnop"))
    assert second.stats.requests == before + 2
    assert max(gap(model, completion) for completion in completions) < 1e-4


@pytest.mark.nightly
async def test_the_only_server_dies_and_is_started_again_so_often_and_no_more(
    small: Small, keys: None, impatient: None, model: PreTrainedModel
) -> None:
    engine = SglangEngine(
        [small.server],
        vocab_size=768,
        context_length=2040,
        transport=TensorTransport(),
        restarts=1,
        timeout_s=2 * READY_S,
    )
    change(model)
    await engine.start(ready_s=READY_S, weights=ModelWeights(model))
    running = asyncio.gather(*(sample(engine, name, 200) for name in "abcd"))
    await asyncio.sleep(0.3)
    os.kill(small.leader, signal.SIGKILL)
    assert all(gap(model, completion) < 1e-4 for completion in await running)

    (slot,) = engine.slots
    assert slot.server is not None
    small.server = slot.server
    processes = small.processes()
    os.kill(small.leader, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"can be used: .* it was killed by force"):
        await sample(engine, "e", 200)
    with pytest.raises(EngineError, match="no SGLang server took the weights of version 1"):
        await engine.update_weights(ModelWeights(model), 1)
    await engine.aclose()
    assert not any(process.is_running() and process.status() != "zombie" for process in processes)
