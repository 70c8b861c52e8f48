"""Publishing weights: from two FSDP ranks into SGLang with two ranks, and into the local engine.

    python benchmarks/reshard.py [--repeats 9] [--publishes 50]

A random Llama of 135 million parameters, 8 query and 4 KV heads, tied embeddings, in float32. Two
processes hold it by FSDP2. Into (i) the real SGLang server with `--tp-size 2`, each of whose ranks
gets its own slices; and (ii) the local engine in this process, unsharded.

Shown is the time until every slice lies in the receiver's memory, beside that of gathering the full
state dict on one rank, of a disk round trip (saving what was gathered, loading it again) and of one
warm copy of all weights in memory; what is moved beside the least that both layouts need; the most
memory that a process needs on top; greedy tokens of one rank, two ranks and the local engine; and
how resident memory grows over many publishes. The whole transaction, with the server's own loading,
checks and flush, is printed beside it. Medians of repetitions in turn, with their least and
greatest. Exits with 1 where a figure misses its bar.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
# (parts of torch and transformers are not typed)

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engine import Engine
from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.tiny import make_tiny
from agentrl.engine.servers.process import Server
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import SharedTransport
from agentrl.engine.sglang.weights.layout import server_layout
from agentrl.engine.sglang.weights.shared import BUCKET_BYTES
from agentrl.trainer import executor
from agentrl.trainer.parallel_dims import ParallelDims, Ranks
from agentrl.trainer.rank_group import PRELOAD, start_ranks
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from agentrl.weights.plan import Bucket, Handle, Layout, Written, volume
from agentrl.workers.dispatch import gathered
from agentrl.workers.executors import Processes
from agentrl.workers.group import WorkerGroup

RANKS = 2
PROMPT = list(range(100, 140))
READY_S = 400.0
MIB = 1 << 20


def shape() -> LlamaConfig:
    """Of 135 million parameters."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


# On the ranks.


class Sharded(executor.Replica):
    """A model in shards, without a trainer."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        """Load the model, shard it."""
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mesh=ranks.mesh)
        fully_shard(model, mesh=ranks.mesh)
        self.ranks, self.model = ranks, model
        self.weights = ModelWeights(model, ranks.rank)

    @gathered
    def pid(self) -> int:
        """The rank's process."""
        return os.getpid()

    @gathered
    def change(self) -> None:
        """Weights that differ from the last ones."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.001)

    @gathered
    def gather_state(self, path: Path | None) -> tuple[float, float]:
        """Seconds of gathering the full state dict on rank 0, and of saving and loading it."""
        torch.distributed.barrier()
        began = time.perf_counter()
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        gathered = time.perf_counter()
        if self.ranks.rank == 0 and path is not None:
            state.pop("lm_head.weight", None)
            save_file(state, path)
            for name, tensor in load_file(path).items():
                state[name].copy_(tensor)
        torch.distributed.barrier()
        return gathered - began, time.perf_counter() - gathered


# In this process.


@dataclass
class Timed:
    """The ranks' weights; keeps how long they wrote, and what."""

    inner: executor.SlicedWeights
    seconds: float = 0.0
    num_bytes: int = 0

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """As the ranks' weights."""
        return self.inner.named_tensors()

    def layout(self) -> Layout:
        """As the ranks' weights."""
        return self.inner.layout()

    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        """As the ranks' weights, timed."""
        began = time.perf_counter()
        written = await self.inner.write(bucket, memory, dtype)
        self.seconds += time.perf_counter() - began
        self.num_bytes += sum(one.num_bytes for one in written)
        return written


@dataclass
class Figures:
    """Repetitions of what is measured, in seconds."""

    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, name: str, seconds: float) -> None:
        """One more."""
        self.values.setdefault(name, []).append(seconds)

    def __getitem__(self, name: str) -> float:
        return median(self.values[name])

    def line(self, name: str) -> str:
        """Median, least and greatest."""
        found = [1000 * value for value in self.values[name]]
        return f"{name:<44} {median(found):8.0f} ms   ({min(found):.0f} to {max(found):.0f})"


@dataclass
class Bench:
    """Who takes part."""

    ranks: WorkerGroup[Sharded]
    weights: Timed
    pids: dict[str, int]
    engines: Mapping[str, Engine]
    versions: dict[str, int] = field(default_factory=dict[str, int])

    async def publish(self, name: str) -> tuple[float, float]:
        """Seconds of writing and of all; the weights are new."""
        self.ranks.ask(Sharded.change)
        version = self.versions[name] = self.versions.get(name, 0) + 1
        self.weights.seconds, self.weights.num_bytes = 0.0, 0
        began = time.perf_counter()
        await self.engines[name].update_weights(self.weights, version)
        return self.weights.seconds, time.perf_counter() - began


def memory_of(pid: int) -> tuple[int, int]:
    """Private and shared resident bytes."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    private, shared = (int(fields[f"Rss{kind}"].split()[0]) * 1024 for kind in ("Anon", "Shmem"))
    return private, shared


@contextmanager
def peaks(pids: Mapping[str, int], *, shared: bool) -> Generator[dict[str, int]]:
    """The most bytes that each process has more than at the beginning, asked for all the time."""

    def now(pid: int) -> int:
        private, mapped = memory_of(pid)
        return private + mapped * shared

    before = {name: now(pid) for name, pid in pids.items()}
    most = dict.fromkeys(pids, 0)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            for name, pid in pids.items():
                most[name] = max(most[name], now(pid) - before[name])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def server_pids(server: Server, prefix: str) -> dict[str, int]:
    """The processes that hold a server's weights."""
    found: dict[str, int] = {}
    for process in psutil.Process(server.guard.pid).children(recursive=True):
        title = " ".join(process.cmdline()).strip()
        if "scheduler" in title:
            found[f"{prefix} {title.split('::')[-1]}"] = process.pid
    return found


def least_bytes(layout: Layout, names: Sequence[Sequence[str]]) -> int:
    """What a server's ranks need: each its own slices once."""
    shapes = {name: tuple(value.shape) for name, value in meta().named_parameters()}
    ours = server_layout(names, shapes, kv_heads=4)
    return sum(
        4 * volume(part.box) for rank in ours for held in rank.values() for part in held.parts
    )


def meta() -> nn.Module:
    """The model without memory."""
    with torch.device("meta"):
        return LlamaForCausalLM(shape())


async def greedy(engine: Engine, num: int = 24) -> list[int]:
    """The likeliest tokens after a prompt."""
    sampling = Sampling(max_new_tokens=num, temperature=0)
    ids: list[int] = (
        await engine.generate(PROMPT, sampling, EpisodeSession("greedy"))
    ).ids_T.tolist()
    return ids


def make_model(folder: Path) -> None:
    """With the tiny model's tokenizer, which a server must have."""
    make_tiny(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(shape()).save_pretrained(folder)


class Bars:
    """Figures beside what they may be at most."""

    missed = False

    def show(self, what: str, value: float, most: float, unit: str = "x") -> None:
        """One figure."""
        ok = value <= most
        self.missed |= not ok
        print(f"{what:<58} {value:8.3f}{unit} at most {most:g}{unit}  {'ok' if ok else 'MISSED'}")


async def measure(bench: Bench, repeats: int, scratch: Path) -> Figures:
    """All times, in turn."""
    figures = Figures()
    num = sum(p.numel() for p in meta().parameters())
    source, target = torch.zeros(num), torch.ones(num)
    for i in range(repeats):
        for name in ("(i) two ranks", "(ii) local"):
            wrote, everything = await bench.publish(name)
            figures.add(f"{name}: slices in place", wrote)
            figures.add(f"{name}: whole transaction", everything)
        began = time.perf_counter()
        target.copy_(source)
        if i:
            figures.add("one warm copy", time.perf_counter() - began)
        seconds = bench.ranks.ask(Sharded.gather_state, scratch / "state.safetensors")
        figures.add("gathering the full state dict", max(one for one, _ in seconds))
        figures.add("disk round trip", max(both for _, both in seconds))
    return figures


async def grow(bench: Bench, publishes: int) -> Mapping[str, float]:
    """Growth of resident memory, in shares per publish, over publishes 10 and later."""
    seen: dict[str, list[float]] = {name: [] for name in bench.pids}
    for i in range(publishes):
        for name in ("(i) two ranks", "(ii) local"):
            await bench.publish(name)
        if i >= 10:
            for name, pid in bench.pids.items():
                seen[name].append(sum(memory_of(pid)))
    slopes: dict[str, float] = {}
    for name, values in seen.items():
        slope = float(np.polyfit(np.arange(len(values)), np.array(values), 1)[0])
        slopes[name] = slope / float(np.mean(values))
    return slopes


async def run(repeats: int, publishes: int, folder: Path) -> bool:
    """Start everything, measure, stop everything."""
    make_model(folder / "model")
    bars = Bars()
    settings = {"tp1": SglangConfig(kv_tokens=2048)}
    settings["tp2"] = SglangConfig(kv_tokens=2048, tp_size=2, memory_fraction=0.5)
    servers: dict[str, Server] = {}
    make = partial(Sharded, folder / "model")
    ranks = start_ranks(Processes(PRELOAD), ParallelDims(size=RANKS), make, threads=1)
    try:
        for name, sglang in settings.items():
            engine_config = EngineConfig(dtype="float32", sglang=sglang)
            servers[name] = start(engine_config, folder / "model", folder)
        pids = {f"rank {i}": pid for i, pid in enumerate(ranks.ask(Sharded.pid))}
        layout = cast("Layout", ranks.ask(Sharded.held))
        weights = Timed(executor.SlicedWeights(ranks, layout))
        engines: dict[str, Engine] = {}
        for name, server in servers.items():
            engines[name] = made = SglangEngine(
                [server], vocab_size=49152, context_length=1000, transport=SharedTransport()
            )
            await made.start(ready_s=READY_S)
        print("servers are up", flush=True)
        model = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        local = EngineConfig(share_weights=False, slots=4, context_length=1000, threads=1)
        engines["(ii) local"] = LocalEngine(model, local)
        del model
        engines["(i) two ranks"] = engines.pop("tp2")
        await compare(
            bars, Bench(ranks, weights, pids, engines), servers, repeats, publishes, folder
        )
        for engine in engines.values():
            await engine.aclose()
    finally:
        ranks.close()
        for server in servers.values():
            server.stop()
    return not bars.missed


async def compare(
    bars: Bars,
    bench: Bench,
    servers: Mapping[str, Server],
    repeats: int,
    publishes: int,
    folder: Path,
) -> None:
    """Print all figures."""
    local, two = "(ii) local", "(i) two ranks"
    bench.pids |= server_pids(servers["tp2"], "server's")
    largest = 49152 * 576 * 4
    most = max(BUCKET_BYTES, largest) / MIB + 10
    everyone = bench.pids | {"this process": os.getpid()}
    print(
        "the first publish into the server, by its own loader, and proof of its layout", flush=True
    )
    with peaks(everyone, shared=True) as first:
        print(f"    {(await bench.publish(two))[1]:.2f} s")
    with peaks(everyone, shared=True) as second:
        print(f"the second one, straight into its ranks\n    {(await bench.publish(two))[1]:.2f} s")
    moved = bench.weights.num_bytes
    for name in everyone:
        bars.show(f"(i) {name}: more memory", max(first[name], second[name]) / MIB, most, " MiB")
    slot = bench.engines[two].slots[0]  # type: ignore[attr-defined]
    names = [list(rank) for rank in await slot.control.checksums()]
    bars.show("(i) bytes moved / least", moved / least_bytes(bench.weights.layout(), names), 1.05)
    for _ in range(2):
        await bench.publish(local)
    with peaks(everyone, shared=False) as third:
        await bench.publish(local)
    whole = sum(p.numel() * 4 for p in meta().parameters())
    bars.show("(ii) bytes moved / least", bench.weights.num_bytes / whole, 1.05)
    for name in [*("rank 0", "rank 1"), "this process"]:
        bars.show(f"(ii) {name}: more memory", third[name] / MIB, most, " MiB")
    figures = await measure(bench, repeats, folder)
    for name in figures.values:
        print(figures.line(name))
    wrote = figures[f"{two}: slices in place"]
    bars.show("(i) / gathering", wrote / figures["gathering the full state dict"], 0.15)
    bars.show("(i) / disk round trip", wrote / figures["disk round trip"], 0.10)
    wrote = figures[f"{local}: slices in place"]
    bars.show("(ii) / one warm copy", wrote / figures["one warm copy"], 2.0)
    await check_tokens(bars, bench)
    for name, slope in (await grow(bench, publishes)).items():
        bars.show(f"{name}: growth per publish", 100 * slope, 0.1, " %")


async def check_tokens(bars: Bars, bench: Bench) -> None:
    """Give all engines the same weights and compare what they sample."""
    found: dict[str, list[int]] = {}
    for name, engine in bench.engines.items():
        version = bench.versions[name] = bench.versions.get(name, 0) + 1
        await engine.update_weights(bench.weights, version)
        found[name] = await greedy(engine)
    different = sum(tokens != found["tp1"] for tokens in found.values())
    bars.show("engines whose greedy tokens are not those of one rank", different, 0, "")


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--publishes", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ok = asyncio.run(run(arguments.repeats, arguments.publishes, Path(folder)))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
