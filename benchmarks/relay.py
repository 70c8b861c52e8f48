"""What a publish sends over the network to each host, through relays and without.

    python benchmarks/relay.py [--hosts 2] [--servers 2] [--updates 3]

Hosts are network namespaces, each joined to this one by a pair of virtual devices whose counters
say what was sent; so it needs root and `ip`. On each are a relay and servers (`agentrl engine serve
local`, a network of about 100 MB). Beside it stands what `tensor` sends, a copy for each server.
The exit code is 1 if a host gets more than 1.05 copies through its relay.
"""

# pyright: reportUnknownMemberType=false
# torch and transformers are typed in part only.

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.tiny import make_tiny
from agentrl.engine.servers.weight_files import MEMORY
from agentrl.engine.servers.weights import Transport
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.weights import DiskTransport, TensorTransport
from agentrl.trainer.weights import ModelWeights

MOST_COPIES = 1.05
KEYS = {"AGENTRL_SGLANG_KEY": "of-servers", "AGENTRL_RELAY_KEY": "of-relays"}


def make_model(folder: Path) -> None:
    """The tiny model's tokenizer and context with a larger network."""
    make_tiny(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
    config |= {"head_dim": 128}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(folder)


class Host:
    """A network namespace, and what was sent to it."""

    def __init__(self, number: int) -> None:
        self.name = f"agentrl-{os.getpid()}-{number}"
        self.device = f"ve{os.getpid() % 10**6}h{number}"
        self.net = f"10.77.{number}"
        self.address = f"{self.net}.2"

    @property
    def sent(self) -> int:
        """Bytes on the device, headers included."""
        return int(Path(f"/sys/class/net/{self.device}/statistics/tx_bytes").read_text())

    @contextmanager
    def running(self) -> Generator[None]:
        """The namespace with its devices, which go with it."""
        inner = f"{self.device}i"
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self.device, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", self.name)
            _ip("addr", "add", f"{self.net}.1/24", "dev", self.device)
            _ip("link", "set", self.device, "up")
            _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", inner)
            _ip("-n", self.name, "link", "set", inner, "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
            yield
        finally:
            _ip("netns", "delete", self.name)

    @contextmanager
    def command(self, *words: str) -> Generator[str]:
        """A command of agentrl that listens there; its address."""
        inside = ["ip", "netns", "exec", self.name, sys.executable, "-m", "agentrl", "engine"]
        command = [*inside, *words, "--host", self.address]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                found = re.search(r"http://[\d.]+:\d+", line)
                assert found, line
                yield found[0]
            finally:
                process.terminate()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)


async def measure_copies(
    transport: Transport, urls: Sequence[str], hosts: Sequence[Host], folder: Path, updates: int
) -> list[float]:
    """Of each update and host: bytes sent to it over the bytes of the weights."""
    model = load_model(folder)
    size = sum(tensor.nbytes for _, tensor in ModelWeights(model).named_tensors())
    engine = SglangEngine(
        urls, vocab_size=768, context_length=2000, transport=transport, timeout_s=120
    )
    copies: list[float] = []
    try:
        await engine.start(ready_s=60, weights=ModelWeights(model))
        for version in range(1, updates + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
            before = [host.sent for host in hosts]
            await engine.update_weights(ModelWeights(model), version)
            copies += [(host.sent - sent) / size for host, sent in zip(hosts, before, strict=True)]
            assert all(slot.state == "serving" for slot in engine.slots)
    finally:
        await engine.aclose()
    return copies


def main() -> int:
    """Print copies per host, each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2, help="on each host")
    parser.add_argument("--updates", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= KEYS
    hosts = [Host(number) for number in range(options.hosts)]
    folder = Path(tempfile.mkdtemp())
    try:
        make_model(folder / "model")
        with ExitStack() as stack:
            for host in hosts:
                stack.enter_context(host.running())
            serve = ["serve", "local", "--model", str(folder / "model"), "--engine.threads", "1"]
            urls = [
                stack.enter_context(host.command(*serve))
                for host in hosts
                for _ in range(options.servers)
            ]
            relays = [stack.enter_context(host.command("relay")) for host in hosts]
            ways = {"relay": DiskTransport(MEMORY, relays), "tensor": TensorTransport()}
            found = {
                name: asyncio.run(
                    measure_copies(way, urls, hosts, folder / "model", options.updates)
                )
                for name, way in ways.items()
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, copies in found.items():
        print(
            f"{name}: {median(copies):.3f} copies to each host and update ({min(copies):.3f} to "
            f"{max(copies):.3f}; {options.hosts} hosts with {options.servers} servers)"
        )
    return 0 if max(found["relay"]) <= MOST_COPIES else 1


if __name__ == "__main__":
    raise SystemExit(main())
