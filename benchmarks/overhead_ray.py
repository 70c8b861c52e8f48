"""What a turn costs that is played in an actor of a Ray cluster: CPU of all processes, and bytes.

Called by `overhead.py --executor ray`. The same episodes of `calculator` are played here and by two
players on two raylets, in turns. The engine is in this process and knows all answers, so that what
is left is the agent loop and its way there. CPU time is that of this process and of all that it has
started, Ray's daemons included.
"""

import asyncio
import contextlib
import time
from collections.abc import Generator, Sequence
from functools import partial
from statistics import median
from unittest import mock

import psutil

from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.envs.calculator import Calculator
from agentrl.orchestration.env_mix import NO_OBJECTS, bind_envs
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.ray_workers import RayPlayers
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
)
from agentrl.rollout.episode import EpisodeRunner, MakeRunner
from agentrl.rollout.player import pickle_envs
from agentrl.rollout.player_pool import PlayerPool
from agentrl.testing.local_ray import local_ray
from agentrl.tokens import Tokenizer
from agentrl.types import Completion, EpisodeSession, Sampling

MOST_MS = 0.3
MEMBERS = 8


class Replay(ScriptedEngine):
    """Answers at once what the expert said to the same ids; the first time it asks him."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(
            Calculator.expert(), codec.renderer(Calculator().tool_schemas), vocab_size=768
        )
        self._known: dict[tuple[int, ...], Completion] = {}

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """The completion of before, or a new one."""
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = await super().generate(ids, sampling, session)
        return self._known[key]


@contextlib.contextmanager
def counted_bytes() -> Generator[list[int]]:
    """Adds up what the streams of this process send and get in the block."""
    write, read, total = asyncio.StreamWriter.write, asyncio.StreamReader.readexactly, [0]

    def counted_write(writer: asyncio.StreamWriter, data: bytes) -> None:
        total[0] += len(data)
        write(writer, data)

    async def counted_read(reader: asyncio.StreamReader, n: int) -> bytes:
        total[0] += n
        return await read(reader, n)

    with (
        mock.patch.object(asyncio.StreamWriter, "write", counted_write),
        mock.patch.object(asyncio.StreamReader, "readexactly", counted_read),
    ):
        yield total


def cpu_s() -> float:
    """Of this process and all below it, which live."""
    me = psutil.Process()
    spent = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


async def play(
    engine: Replay, codec: Codec, make_runner: MakeRunner, groups: int
) -> tuple[float, int, int, int]:
    """CPU seconds of all processes, turns, episodes, bytes through this process."""
    services = EnvServices()
    settings = CollectSettings(
        limits=EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=600.0, setup_s=60.0),
        temperature=1.0,
        concurrency=256,
        attempts=1,
        max_invalid_share=0.0,
        make_runner=make_runner,
    )
    jobs = [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=place),
            env="calculator",
            make_env=partial(Calculator, services=services),
            task=Calculator.task_at(place, split="train", seed=0),
            split="train",
        )
        for place in range(groups)
    ]
    collector = Collector(engine=engine, codec=codec, settings=settings)
    with counted_bytes() as total:
        before = cpu_s()
        played = await gather_groups(collector.collect(jobs, group_size=MEMBERS))
        spent = cpu_s() - before
    services.close()
    assert all(episode.reward == 1.0 for episode in played.episodes)
    turns = sum(len(episode.turns) for episode in played.episodes)
    return spent, turns, len(played.episodes), total[0]


async def measure(address: str, groups: int, repeats: int) -> int:
    """Print what both ways cost; 1 above the bar."""
    codec = Codec(Tokenizer.load(resolve_model("tiny")))
    engine = Replay(codec)
    config = load_run_config(flags=["--env", "calculator"]).config
    envs = pickle_envs([env.maker for env in bind_envs(config, NO_OBJECTS)])
    await play(engine, codec, EpisodeRunner, groups)  # the answers are known from now on
    workers = RayPlayers("overhead", address, 30.0).start(None)
    pool = PlayerPool(workers, codec=codec, envs=envs, deadline_s=30.0)
    here: list[float] = []
    there: list[float] = []
    try:
        await pool.start()
        print("\n".join(pool.places))
        _, turns, episodes, through = await play(engine, codec, pool.make_runner, groups)
        for _ in range(repeats):
            for way, costs in ((EpisodeRunner, here), (pool.make_runner, there)):
                spent, *_ = await play(engine, codec, way, groups)
                costs.append(1e3 * spent / turns)
        before, started = cpu_s(), time.perf_counter()
        await asyncio.sleep(5)
        idle = (cpu_s() - before) / (time.perf_counter() - started)
    finally:
        await pool.aclose()
    for name, each in (("here", here), ("in players", there)):
        print(f"{name}: {median(each):.3f} ms CPU a turn ({min(each):.3f} to {max(each):.3f})")
    added = median(there) - median(here)
    print(f"added: {added:.3f} ms a turn, at most {MOST_MS} allowed; idle {idle:.3f} CPU s a s")
    print(
        f"through the driver: {through:,} bytes for {turns:,} turns of {episodes:,} episodes, "
        f"{through / episodes:,.0f} an episode"
    )
    return 0 if added <= MOST_MS else 1


def main(turns: int, repeats: int) -> int:
    """As `overhead.py --executor ray`."""
    with local_ray(nodes=2, cpus=1) as cluster:
        return asyncio.run(measure(cluster.address, max(1, turns // MEMBERS // 2), repeats))
