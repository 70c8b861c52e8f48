"""How many episodes at once suit an engine's cache: fixed numbers beside `auto`, on real SGLang.

    python benchmarks/concurrency.py [--episodes 48] [--fixed 4,8,16,32] [--widths 96,256]
                                     [--repeats 3]

Servers on this CPU with a pool of 6,000 tokens. Episodes have 2 to 8 turns of 24 sampled tokens, an
answer of 20 to 200 tokens after each, and tools that take 50 ms to 5 s, log-normal; they end with
1,300 tokens on average. All settings play the same ones. Of the models one is narrow, so that a
context is computed in less time than a tool takes, and one is wide.

A round plays every setting once, every other round in the opposite order, since a shared machine
is not as fast at one time as at another. Printed are episodes per hour, CPU seconds of the server
per episode, the most that were open, and computed prompt tokens as a multiple of the least: each
token once, a group's prompt once for all. The best number is the one with the highest median;
`auto` is compared with it within each round. Then how long new weights take while an episode's tool
runs, and without. Exits with 1 where the median of `auto`'s share of the best is below 0.85.
"""

import argparse
import asyncio
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.servers.process import Server
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import RESERVED, start
from agentrl.engine.sglang.weights import TensorTransport
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
from agentrl.schedule import Concurrency
from agentrl.tokens import Tokenizer, seal
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Completion, Episode, EpisodeSession, Sampling, StopReason, Task

KV_TOKENS = 6000
GROUP, TURNS, SAMPLED, RESULT = 4, (2, 8), 24, (20, 200)
TOOL_S, TOOL_MEDIAN_S = (0.05, 5.0), 0.7
LEAST_SHARE = 0.85
CONTEXT = 2048 - RESERVED
LIMITS = EpisodeLimits(
    max_new_tokens=SAMPLED, max_context_tokens=CONTEXT, wall_s=600.0, setup_s=60.0
)


class Scripted(ToolEnv):
    """Whatever is said, it answers with so many words after so long, for so many turns."""

    tasks = tuple(Task(prompt=f"{i} " + "word " * (100 + 37 * i % 200)) for i in range(64))
    max_turns = TURNS[1]

    def setup(self) -> None:
        """Draw how many turns it has."""
        self.left = int(self.rng.integers(*TURNS, endpoint=True))

    async def reply(self, text: str) -> str | None:
        """Take some time."""
        self.left -= 1
        seconds = float(self.rng.lognormal(math.log(TOOL_MEDIAN_S), 1.0))
        num_words = int(self.rng.integers(*RESULT, endpoint=True))
        await asyncio.sleep(min(max(seconds, TOOL_S[0]), TOOL_S[1]))
        return "word " * num_words if self.left else None

    def score(self, answer: object) -> float:
        """Nothing is asked."""
        return 1.0


class Watched(SglangEngine):
    """A real server, whose completions all have one length, as if the model had ended them."""

    def __init__(self, server: Server) -> None:
        super().__init__(
            [server],
            vocab_size=768,
            context_length=CONTEXT,
            transport=TensorTransport(),
        )
        self.open: set[str] = set()
        self.most_open = 0

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """Sample to the end."""
        self.open.add(session.key)
        self.most_open = max(self.most_open, len(self.open))
        endless = replace(sampling, stop_ids=frozenset())
        done = await super().generate(ids, endless, session)
        if done.stop_reason is not StopReason.LENGTH or not sampling.stop_ids:
            return done
        ended = [*done.ids_T[:-1].tolist(), min(sampling.stop_ids)]
        cached = done.cached_tokens
        logprobs, versions = done.logprobs_T, done.versions_T
        return seal(ended, logprobs, versions, StopReason.STOP, cached_tokens=cached)

    async def end_session(self, session: EpisodeSession) -> None:
        """It is closed."""
        self.open.discard(session.key)
        await super().end_session(session)


@dataclass(frozen=True)
class Row:
    """What a setting came to."""

    concurrency: Concurrency
    per_hour: float
    most_open: int
    recomputed: float
    """Computed prompt tokens over the least."""
    cpu_s: float
    """CPU seconds of the server per episode."""
    load: float
    """Of the machine, in the minute before the end."""


def make_jobs(num: int) -> list[GroupJob]:
    """Groups of the same tasks in each call."""
    return [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=i),
            env="scripted",
            make_env=Scripted,
            task=Scripted.task_at(i, split="train", seed=0),
            split="train",
        )
        for i in range(num)
    ]


def count_least(episodes: Sequence[Episode]) -> int:
    """Tokens that an engine with room for all computes: those that it has not sampled, once."""
    least, groups = 0, set[int]()
    for episode in episodes:
        for segment in episode.segments:
            prompt = int(segment.mask_T.argmax())
            least += int((~segment.mask_T).sum()) - (prompt if episode.group in groups else 0)
        groups.add(episode.group)
        least += len(episode.turns) - 1  # the last token of a completion is not computed by it
    return least


def sum_server_cpu_seconds(engine: Watched) -> float:
    """CPU seconds of all processes of the server so far."""
    server = engine.slots[0].server
    assert server is not None
    times = [one.cpu_times() for one in psutil.Process(server.guard.pid).children(recursive=True)]
    return sum(one.user + one.system for one in times)


async def play(engine: Watched, codec: Codec, concurrency: Concurrency, num: int) -> Row:
    """Play so many episodes, with an empty cache at the start."""
    settings = CollectSettings(
        limits=LIMITS,
        temperature=1.0,
        concurrency=concurrency,
        attempts=1,
        max_invalid_share=0.5,
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)
    await engine.slots[0].control.flush()
    before, engine.most_open = (await engine.health()).prefill_tokens, 0
    started, cpu_s = time.perf_counter(), sum_server_cpu_seconds(engine)
    groups = await gather_groups(collector.collect(make_jobs(num // GROUP), group_size=GROUP))
    seconds = time.perf_counter() - started
    computed = (await engine.health()).prefill_tokens - before
    least = count_least(groups.episodes)
    return Row(
        concurrency=concurrency,
        per_hour=num / seconds * 3600,
        most_open=engine.most_open,
        recomputed=computed / least,
        cpu_s=(sum_server_cpu_seconds(engine) - cpu_s) / num,
        load=os.getloadavg()[0],
    )


async def time_publishes(engine: Watched, codec: Codec, model: PreTrainedModel) -> list[float]:
    """Seconds of new weights with nothing open, and while the tools of 16 episodes run."""
    found: list[float] = []
    settings = CollectSettings(
        limits=LIMITS, temperature=1.0, concurrency=16, attempts=1, max_invalid_share=0.5
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)
    for has_tools in (False, True):
        playing = None
        if has_tools:
            InTool.waiting, InTool.all_wait = 0, asyncio.Event()
            jobs = [replace(job, make_env=InTool) for job in make_jobs(4)]
            playing = asyncio.create_task(gather_groups(collector.collect(jobs, group_size=GROUP)))
            await InTool.all_wait.wait()
        times: list[float] = []
        for _ in range(5):
            started = time.perf_counter()
            await engine.update_weights(ModelWeights(model), engine.version + 1)
            times.append(time.perf_counter() - started)
        found.append(median(times))
        if playing is not None:
            assert not playing.done(), "the tools ended before the weights were there"
            await playing
    return found


class InTool(Scripted):
    """Each tool call takes 30 s."""

    waiting = 0
    all_wait: asyncio.Event

    async def reply(self, text: str) -> str | None:
        """Take long, and end."""
        InTool.waiting += 1
        if InTool.waiting == 16:
            InTool.all_wait.set()
        await asyncio.sleep(30.0)
        return None


def make_folder(folder: Path, width: int) -> PreTrainedModel:
    """The tiny model's folder, or one as wide as that, with random weights."""
    model = load_model(resolve_model("tiny"))
    config = cast(LlamaConfig, model.config)
    if width != config.hidden_size:
        config.hidden_size, config.intermediate_size = width, 2 * width
        config.head_dim, config.num_hidden_layers = width // 4, 8
        model = LlamaForCausalLM(config)
    cast(Any, model).save_pretrained(folder)
    for file in resolve_model("tiny").iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    return model


def print_rows(rows: Sequence[Row]) -> None:
    """Print the medians of a setting's rows in a line."""
    print(
        f"{rows[0].concurrency:>7}  {median(row.most_open for row in rows):4.0f}"
        f"  {median(row.per_hour for row in rows):10,.0f}"
        f"  {median(row.recomputed for row in rows):13.2f}x"
        f"  {median(row.cpu_s for row in rows):13.2f}  {median(row.load for row in rows):4.1f}"
        + (
            f"  ({min(row.per_hour for row in rows):,.0f} to"
            f" {max(row.per_hour for row in rows):,.0f} an hour)"
            if len(rows) > 1
            else ""
        ),
        flush=True,
    )


def compare_rounds(rounds: Sequence[dict[Concurrency, Row]]) -> float:
    """Print and return the median of `auto`'s share of the best number within a round."""
    numbers = [one for one in rounds[0] if one != "auto"]
    best = max(numbers, key=lambda one: median(rows[one].per_hour for rows in rounds))
    shares = sorted(rows["auto"].per_hour / rows[best].per_hour for rows in rounds)
    print(
        f"auto is {median(shares):.2f} of the best, {best} ({shares[0]:.2f} to {shares[-1]:.2f};"
        f" at least {LEAST_SHARE})"
    )
    return median(shares)


async def compare(options: argparse.Namespace, width: int) -> bool:
    """Print a table for a model; True if `auto` is good enough."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        model = make_folder(folder, width)
        config = EngineConfig(dtype="float32", sglang=SglangConfig(kv_tokens=KV_TOKENS))
        server = start(config, folder, Path(place))
        engine = Watched(server)
        try:
            await engine.start(ready_s=400, weights=ModelWeights(model))
            await engine.measure_prefill()
            print(f"width {width}: a full cache is computed in {engine.cache_fill_s:.2f} s")
            codec = Codec(Tokenizer.load(folder))
            settings: list[Concurrency] = [*map(int, options.fixed.split(",")), "auto"]
            print("setting  most  episodes/h  computed/least  CPU s/episode  load", flush=True)
            rounds: list[dict[Concurrency, Row]] = []
            for i in range(options.repeats):
                order = settings if i % 2 == 0 else settings[::-1]
                rounds.append({})
                for one in order:
                    rounds[i][one] = row = await play(engine, codec, one, options.episodes)
                    print_rows([row])
            print("medians (lowest to highest)")
            for one in settings:
                print_rows([rows[one] for rows in rounds])
            share = compare_rounds(rounds)
            alone, beside = await time_publishes(engine, codec, model)
            print(f"new weights: {alone:.2f} s alone, {beside:.2f} s during tools of 30 s")
        finally:
            await engine.aclose()
    return share >= LEAST_SHARE


def main() -> int:
    """Compare with each model; 1 if `auto` is too slow with one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--fixed", default="4,8,16,32")
    parser.add_argument("--widths", default="96,256")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    good = [asyncio.run(compare(options, int(width))) for width in options.widths.split(",")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
