"""`agentrl engine relay`: a host gets new weights once, each of its servers loads them there."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from aiohttp import web
from transformers import PreTrainedModel

from agentrl.engine.serve.relay import FILE, Relay
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.engine import ServedEngine
from agentrl.engine.servers.weight_files import MEMORY, WeightFiles, check_relays
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import RESERVED
from agentrl.engine.sglang.weights import DiskTransport
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.weights import FileTransport
from agentrl.errors import ConfigError, EngineError
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.conftest import Kind

pytestmark = pytest.mark.timeout(300)

KEY = "of-the-relay"


def names(folder: Path | str) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path, subprocess.Popen[str]]]:
    """The command, in a process of its own: its address, its folder."""
    monkeypatch.setenv("AGENTRL_RELAY_KEY", KEY)
    command = [sys.executable, "-m", "agentrl", "engine", "relay"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"(http://127\.0\.0\.1:\d+) lie in (\S+);", process.stdout.readline())
        assert found
        yield found[1], Path(found[2]), process
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


async def test_weights_come_through_a_relay_and_leave_nothing_behind(
    kind: Kind, model: PreTrainedModel, relay: tuple[str, Path, subprocess.Popen[str]]
) -> None:
    url, folder, process = relay
    make = FileTransport if kind.engine is VllmEngine else DiskTransport
    engine = kind.make(transport=make(MEMORY, [url]))
    await engine.start(ready_s=60, weights=ModelWeights(model))
    try:
        with torch.no_grad():
            model.get_parameter("model.norm.weight").mul_(1.05)
        await engine.update_weights(ModelWeights(model), 1)
        prompt = list(range(300, 320))
        completion = await engine.generate(prompt, Sampling(max_new_tokens=8), EpisodeSession("a"))
        assert set(completion.versions_T.tolist()) == {1}
        ids = torch.tensor([prompt + completion.ids_T.tolist()])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        ours = logprobs.gather(1, torch.tensor(completion.ids_T).long()[:, None])[:, 0]
        assert (ours - torch.tensor(completion.logprobs_T)).abs().max() < 1e-4
        assert not names(folder), "they are memory"
    finally:
        await engine.aclose()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not folder.exists()


def test_what_a_killed_relay_left_goes_with_the_next(
    relay: tuple[str, Path, subprocess.Popen[str]],
) -> None:
    _, folder, process = relay
    process.kill()
    process.wait(20)
    assert folder.exists()
    other = MEMORY / f"agentrl-relay-of-{os.getpid()}"  # nobody's: no lock is held
    other.mkdir()
    command = [sys.executable, "-m", "agentrl", "engine", "relay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        assert " lie in " in second.stdout.readline()
        assert not folder.exists()
        assert not other.exists()
        second.terminate()


class Watched(Relay):
    """Counts what comes."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        super().__init__(folder, keys)
        self.bytes: list[int] = []
        self.engine: ServedEngine | None = None
        self.paused: list[bool] = []

    async def _take(self, request: web.Request) -> web.Response:
        self.bytes.append(request.content_length or 0)
        self.paused.append(self.engine is not None and self.engine.paused_s > 0)
        return await super()._take(request)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[tuple[Watched, str]]:
    """A relay in this process, and its address."""
    folder = tmp_path / "relay"
    folder.mkdir()
    made = Watched(folder, Keys())
    runner = web.AppRunner(made.make(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield made, f"http://{host}:{port}"
    await runner.cleanup()


async def test_a_host_gets_them_once_and_before_anything_pauses(
    watched: tuple[Watched, str], tmp_path: Path, model: PreTrainedModel, local_url: str
) -> None:
    relay, url = watched
    files = WeightFiles(tmp_path, [url], timeout_s=60)
    named = list(ModelWeights(model).named_tensors())
    size = sum(tensor.nbytes for _, tensor in named)
    for _ in range(2):
        await files.bring(named, 3, ["127.0.0.1", "127.0.0.1", "elsewhere"])
    assert len(relay.bytes) == 1
    assert size <= relay.bytes[0] < size * 1.05
    assert files.folder_for("http://127.0.0.1:1") == files.folder_for("http://127.0.0.1:2")
    assert files.folder_for("http://elsewhere:1").startswith(str(tmp_path))
    await files.bring(named, 4, ["127.0.0.1"])
    assert len(relay.bytes) == 2
    await files.aclose()
    assert names(tmp_path) == ["relay"]
    assert names(tmp_path / "relay") == []

    engine = SglangEngine(
        [local_url],
        vocab_size=768,
        context_length=2048 - RESERVED,
        transport=DiskTransport(tmp_path, [url]),
        timeout_s=60,
    )
    await engine.start(ready_s=60, weights=ModelWeights(model))
    relay.engine, relay.paused = engine, []
    source, listed = ModelWeights(model), list[int]()

    class Counted:
        def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            listed.append(1)
            return source.named_tensors()

    await engine.update_weights(Counted(), 1)
    assert relay.paused == [False]
    assert len(listed) == 1, "ranks elsewhere would send all of them each time"
    assert engine.paused_s > 0
    await engine.aclose()


def disk_with_100_bytes(_: Path) -> SimpleNamespace:
    return SimpleNamespace(free=100)


async def test_what_a_relay_does_not_take_is_said(
    watched: tuple[Watched, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, url = watched
    files = WeightFiles(tmp_path, [url], timeout_s=2)
    named = [("a", torch.zeros(1000))]

    async def refused() -> str:
        await files.bring(named, 1, ["127.0.0.1"])
        with pytest.raises(EngineError) as caught:
            files.folder_for("http://127.0.0.1:1")
        assert not names(tmp_path / "relay")
        return str(caught.value)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", disk_with_100_bytes)
        assert re.search(r"answered 507: \d,\d+ bytes came, 100 are free$", await refused())
    with monkeypatch.context() as patch:
        patch.setattr(relay, "_keys", Keys("another", "another"))
        assert (await refused()).endswith("this relay's; set AGENTRL_RELAY_KEY to its key")
    with monkeypatch.context() as patch:
        busy = asyncio.Lock()
        patch.setattr(relay, "_busy", busy)
        async with busy:
            assert (await refused()).endswith("took no weights within 2 s")
    await files.bring(named, 1, ["127.0.0.1"])
    assert names(files.folder_for("http://127.0.0.1:1")) == [FILE]
    await files.aclose()


async def test_half_of_a_file_is_none(watched: tuple[Watched, str], tmp_path: Path) -> None:
    reader, writer = await asyncio.open_connection(*watched[1].removeprefix("http://").split(":"))
    writer.write(b"PUT /weights HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf")
    await writer.drain()
    writer.close()
    await asyncio.wait_for(reader.read(), 20)
    for _ in range(100):
        if not names(tmp_path / "relay"):
            break
        await asyncio.sleep(0.05)
    assert not names(tmp_path / "relay")


def test_a_relay_is_an_address() -> None:
    for url in ("nonsense", "a:1", "http://", "ftp://a:1"):
        with pytest.raises(ConfigError, match="expected an address such as http://"):
            check_relays([url], ["http://a:2"])


@pytest.mark.parametrize(
    ("relays", "servers", "sentence"),
    [
        ("a:1", "a:2 b:3", "a server is on b; start one there by `agentrl engine relay`"),
        ("a:1 b:1", "a:2", r"no server is on b; expected the hosts .* \(a\)"),
        ("a:1", "", "none is named"),
        ("a:1 a:2", "a:3", "two relays on one host"),
    ],
)
def test_relays_and_servers_have_to_go_together(relays: str, servers: str, sentence: str) -> None:
    given = [[f"http://{one}" for one in text.split()] for text in (relays, servers)]
    with pytest.raises(ConfigError, match=sentence):
        check_relays(*given)
