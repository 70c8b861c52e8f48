import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.models.load import load_model
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.engine import ServedEngine
from agentrl.engine.servers.process import Server
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import RESERVED, start
from agentrl.engine.sglang.weights import (
    BroadcastTransport,
    DiskTransport,
    TensorTransport,
    Transport,
)
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.server import start as start_vllm
from agentrl.engine.vllm.weights import FileTransport
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling

READY_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that runs, and what it can do beyond what all can."""

    url: str
    seeds: bool
    """A `sampling_seed` decides what is sampled."""
    checks_ids: bool
    """It survives ids outside its vocabulary."""
    broadcasts: bool
    """It takes weights over a process group."""
    truncates: bool
    """It samples from a part of the distribution if asked."""


async def wait_until_sampled(url: str, num: int = 1) -> None:
    """Until so many requests run, and some of the tokens of each are there."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        while True:
            loads = (await http.get("/v1/loads")).json()["loads"]
            if sum(load["num_running_reqs"] for load in loads) == num:
                break
            await asyncio.sleep(0.02)
        # All that run get their tokens together, so beside a short one the others get some, too.
        short = {"max_new_tokens": 4, "ignore_eos": True}
        await http.post("/generate", json={"input_ids": [5, 6], "sampling_params": short})


@pytest.fixture(scope="session")
def server(
    sglang_folder: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The real server with the tiny model, one for all tests; it asks for no key."""
    logs = tmp_path_factory.mktemp("logs")
    running = start(EngineConfig(), tiny_folder, logs, keys=Keys())
    try:
        asyncio.run(running.wait_ready(READY_S))
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def local_url(tiny_folder: Path) -> Iterator[str]:
    """`agentrl engine serve local` with the tiny model, one for all tests."""
    command = ["-m", "agentrl", "engine", "serve", "local", "--engine.threads", "1", "--model"]
    process = subprocess.Popen(
        [sys.executable, *command, str(tiny_folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line
        yield found[0]
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=20)
    assert (process.returncode, rest) == (0, "stopped\n")


@pytest.fixture(scope="session", params=[pytest.param("sglang", marks=pytest.mark.sglang), "local"])
def target(request: pytest.FixtureRequest) -> Target:
    """Each server in turn."""
    if request.param == "local":
        url = request.getfixturevalue("local_url")
        return Target(url=url, seeds=True, checks_ids=True, broadcasts=False, truncates=False)
    url = request.getfixturevalue("server").url
    return Target(url=url, seeds=False, checks_ids=False, broadcasts=True, truncates=True)


@pytest.fixture
def model(tiny_folder: Path) -> PreTrainedModel:
    return load_model(tiny_folder)


@pytest.fixture
async def engine(target: Target, model: PreTrainedModel) -> AsyncIterator[SglangEngine]:
    """An engine over each server that speaks SGLang's protocol."""
    made = SglangEngine(
        [target.url],
        vocab_size=768,
        context_length=2048 - RESERVED,
        transport=TensorTransport(),
        timeout_s=60,
    )
    await made.start(ready_s=60, weights=ModelWeights(model))
    yield made
    await made.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of servers, whatever they speak."""

    url: str
    engine: type[ServedEngine]
    transports: Sequence[Callable[[], Transport]]
    """The first one is the usual one."""
    context_length: int
    block: int
    """Tokens of a prompt are cached by so many at once."""
    own_stops: bool
    """It stops at tokens of its own too."""
    slow: bool = False
    """It samples in Python."""

    async def until_sampled(self, engine: ServedEngine, num: int = 1) -> None:
        """Until so many requests run, and some of the tokens of each are there."""
        short = Sampling(max_new_tokens=4)
        if self.engine is VllmEngine:
            # It says late what runs. It serves who came first: after these, the others have tokens.
            for _ in range(3):
                await engine.generate([5, 6], short, EpisodeSession("short"))
            return
        while await self.running() != num:  # noqa: ASYNC110  # the server knows no event
            await asyncio.sleep(0.02)
        # All that run get their tokens together, so beside a short one the others get some, too.
        await engine.generate([5, 6], short, EpisodeSession("short"))

    async def running(self) -> int:
        """How many requests the server says to work on."""
        headers = Keys.given("vllm").headers()
        async with httpx.AsyncClient(base_url=self.url, timeout=60, headers=headers) as http:
            if self.engine is not VllmEngine:
                loads = (await http.get("/v1/loads")).json()["loads"]
                return sum(load["num_running_reqs"] for load in loads)
            told = re.findall(
                r"^vllm:num_requests_running\{.*\} (\S+)$", (await http.get("/metrics")).text, re.M
            )
            return int(float(told[0]))

    def make(self, **settings: Any) -> ServedEngine:
        """An engine with a transport of its own, to be started and closed."""
        settings = {"timeout_s": 120} | settings
        if "transport" not in settings:  # each has a folder, so none is made in vain
            settings["transport"] = self.transports[0]()
        return self.engine(
            [self.url], vocab_size=768, context_length=self.context_length, **settings
        )


@pytest.fixture(scope="session")
def vllm_server(
    vllm_folder: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The real server with the tiny model, one for all tests; its key is in the environment."""
    logs = tmp_path_factory.mktemp("logs")
    running = start_vllm(EngineConfig(), tiny_folder, logs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_VLLM_KEY", running.keys.user)
        try:
            asyncio.run(running.wait_ready(READY_S))
            yield running
        finally:
            running.stop()


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("sglang", marks=pytest.mark.sglang),
        "local",
        pytest.param("vllm", marks=pytest.mark.vllm),
    ],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind in turn."""
    if request.param == "vllm":
        return Kind(
            url=request.getfixturevalue("vllm_server").url,
            engine=VllmEngine,
            transports=(FileTransport, lambda: FileTransport(None)),
            context_length=2048,
            block=32,
            own_stops=False,
        )
    fixture = {"local": "local_url", "sglang": "server"}[request.param]
    found = request.getfixturevalue(fixture)
    everywhere = (TensorTransport, DiskTransport)
    return Kind(
        url=found if isinstance(found, str) else found.url,
        engine=SglangEngine,
        transports=everywhere if request.param == "local" else (*everywhere, BroadcastTransport),
        context_length=2048 - RESERVED,
        block=1,
        own_stops=True,
        slow=request.param == "local",
    )


@pytest.fixture
async def served(kind: Kind, model: PreTrainedModel) -> AsyncIterator[ServedEngine]:
    """An engine over each kind of server, with the model's weights as version 0."""
    made = kind.make()
    await made.start(ready_s=60, weights=ModelWeights(model))
    yield made
    await made.aclose()
