"""A second real server with little room and keys, beside the first: refusals, failure, return."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.sglang import fleet
from agentrl.engine.sglang.control import ADMIN_KEY, KEY
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import Server, start
from agentrl.engine.sglang.weights import TensorTransport
from agentrl.errors import ConfigError, EngineError
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Sampling, Session
from tests.contract.engine.conftest import READY_S

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PROMPT = list(range(300, 340))
KV_TOKENS = 600
STOP_IDS = frozenset({0, 2})
"""Those of the server too, so that each completion is one request."""


@pytest.fixture(scope="module")
def small(
    server: Server, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a cache of 600 tokens, a queue of one, and two keys."""
    extra = (
        "--max-running-requests 2 --max-queued-requests 1 --api-key user-word "
        "--admin-api-key admin-word"
    )
    config = EngineConfig(sglang=SglangConfig(kv_tokens=KV_TOKENS, extra_args=extra))
    running = start(config, tiny_folder, tmp_path_factory.mktemp("logs"))
    try:
        asyncio.run(running.wait_ready(READY_S))
        yield running
    finally:
        running.stop()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "user-word")
    monkeypatch.setenv(ADMIN_KEY, "admin-word")


@pytest.fixture
async def limited(small: Server, keys: None, model: PreTrainedModel) -> AsyncIterator[SglangEngine]:
    made = SglangEngine([small.url], vocab_size=768, context_length=2040, timeout_s=60)
    await made.start(ready_s=60)
    yield made
    await made.aclose()


async def test_a_wrong_key_is_named_by_its_variable(
    small: Server, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(EngineError, match=r"cut a completion at \d+ of \d+ tokens"):
        await limited.generate(PROMPT, Sampling(max_tokens=1000), Session("a"))


async def test_a_full_queue_is_waited_for(limited: SglangEngine) -> None:
    sampling = Sampling(max_tokens=40)
    runs = [limited.generate(PROMPT, sampling, Session(f"s{i}")) for i in range(12)]
    completions = await asyncio.gather(*runs)
    assert all(len(completion.ids_T) == 40 for completion in completions)


@pytest.fixture
async def pair(
    server: Server,
    small: Server,
    keys: None,
    model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[SglangEngine]:
    """An engine over both servers that soon notices who is gone."""
    monkeypatch.setattr(fleet, "WATCH_S", 0.3)
    monkeypatch.setattr(fleet, "HEALTH_S", 1.0)
    made = SglangEngine(
        [server, small],
        vocab_size=768,
        context_length=2040,
        transport=TensorTransport(timeout_s=4.0),
        timeout_s=60,
        control_s=5,
    )
    await made.start(ready_s=60, weights=ModelWeights(model))
    yield made
    for slot in made.slots:
        slot.server = None  # their own fixtures stop them
    await made.aclose()


async def test_two_servers_of_which_one_stands_still_and_dies(
    pair: SglangEngine, small: Server, model: PreTrainedModel
) -> None:
    engine = pair
    first, second = engine.slots

    def state() -> str:
        return second.state

    async def sample(name: str, num: int = 30) -> set[int]:
        sampling = Sampling(max_tokens=num, stop_ids=STOP_IDS)
        completion = await engine.generate(PROMPT, sampling, Session(name))
        return set(completion.versions_T.tolist())

    async def until(wanted: str) -> None:
        for _ in range(300):
            if second.state == wanted:
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"the server is {second.state}, not {wanted}")

    # New sessions go to whoever has least to do, and stay there.
    await asyncio.gather(*(sample(name) for name in "abcd"))
    assert first.stats.requests == second.stats.requests == 2
    await asyncio.gather(*(sample(name) for name in "abcd"))
    assert first.stats.requests == second.stats.requests == 4

    # It stands still: what waits for it is asked of the other one.
    leader = second_pid(small)
    processes = [psutil.Process(leader), *psutil.Process(leader).children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    versions = await asyncio.gather(*(sample(name, 300) for name in "abcd"))
    assert all(found == {0} for found in versions)
    assert time.monotonic() - started < 30
    assert state() == "down"

    # It misses an update; when it goes on, it serves only once it has the weights of now.
    await engine.update_weights(ModelWeights(model), 1)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    await until("stale")
    assert "version 0" in second.reason
    assert await sample("x") == {1}
    await engine.update_weights(ModelWeights(model), 2)
    assert state() == "serving"
    versions = await asyncio.gather(*(sample(name) for name in "efgh"))
    assert all(found == {2} for found in versions)

    # It stands still in the middle of an update: left out, and the run goes on.
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    second.serve()
    await engine.update_weights(ModelWeights(model), 3)
    assert state() != "serving"
    assert await sample("y") == {3}
    for process in processes:
        process.send_signal(signal.SIGCONT)
    await until("stale")
    await engine.update_weights(ModelWeights(model), 4)
    assert state() == "serving"

    # It is killed while it samples.
    running = asyncio.gather(*(sample(name, 300) for name in "ijkl"))
    await asyncio.sleep(0.3)
    os.kill(leader, signal.SIGKILL)
    assert all(versions == {4} for versions in await running)
    await until("down")
    assert (await engine.health()).alive
    await asyncio.to_thread(small.guard.wait, 30)
    assert not any(process.is_running() and process.status() != "zombie" for process in processes)

    # Nobody is left.
    first.fail("down", "it was taken away")
    with pytest.raises(EngineError, match=r"no SGLang server can be used: .*taken away.*it ended"):
        await sample("z")


def second_pid(server: Server) -> int:
    """The server's first process, below its guard."""
    (child,) = psutil.Process(server.guard.pid).children()
    return child.pid
