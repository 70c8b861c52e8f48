"""What scheduling and recording a turn costs, with 1 to 4,096 episodes at once.

    python benchmarks/overhead.py [--turns 20000] [--repeats 5] [--executor ray]

Scheduler: the events of a simulated run, told once more to a scheduler alone. Log: completions of
200 tokens appended to `turns.jsonl`, 100 new tokens before each. CPU time in both; medians over the
repeats, which alternate. Memory: what an open episode takes in a driver whose engine never answers,
with its environment, its record and its task. Exits with 1 if a turn among many episodes costs more
than 1.5 times that of the cheapest number of them, or the reverse.
With `--executor ray` it is what a turn costs in actors of a cluster instead (`overhead_ray.py`).
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.envs.calculator import Calculator
from agentrl.rollout import Codec, CollectSettings, EpisodeKey, EpisodeLimits, GroupJob
from agentrl.rollout.driver import RolloutDriver
from agentrl.rollout.turn_log import TurnLog
from agentrl.schedule import Schedule, Scheduler
from agentrl.schedule.events import Action, EpisodeEnded, EpisodeWaits, Event
from agentrl.testing.virtual_clock import Workload, lognormal, simulate
from agentrl.tokens import Tokenizer, seal
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason

EPISODES = (1, 8, 64, 512, 4_096)
MOST_RATIO = 1.5
MEMBERS = 8


def make_schedule(episodes: int, turns: int) -> Schedule:
    """As many episodes at once, and steps enough for so many turns (4.5 an episode)."""
    groups = max(1, episodes // MEMBERS)
    steps = max(2, round(turns / 4.5 / groups / MEMBERS))
    return Schedule(
        groups_per_step=groups, members=MEMBERS, steps=steps, staleness=4, concurrency=episodes
    )


def record_events(schedule: Schedule) -> list[tuple[Event, float]]:
    """All that a scheduler is told in a simulated run."""
    told: list[tuple[Event, float]] = []

    class Recording(Scheduler):
        def on(self, event: Event, now: float) -> list[Action]:
            told.append((event, now))
            if isinstance(event, EpisodeWaits):  # for its tool first, then for the engine
                told.append((replace(event, owner="environment"), now))
            return super().on(event, now)

    workload = Workload(
        num_turns=lambda rng: rng.randint(1, 8), turn_s=lognormal(10.0, 1.0), train_s=20.0
    )
    with mock.patch("agentrl.testing.virtual_clock.Scheduler", Recording):
        simulate(schedule, workload)
    return told


def time_scheduler(schedule: Schedule, told: Sequence[tuple[Event, float]]) -> float:
    """CPU microseconds a turn."""
    scheduler, kinds = Scheduler(schedule), Counter(type(event) for event, _ in told)
    turns = kinds[EpisodeWaits] // 2 + kinds[EpisodeEnded]
    started = time.process_time()
    for event, now in told:
        scheduler.on(event, now)
    return 1e6 * (time.process_time() - started) / turns


def time_log(episodes: int, turns: int, file: Path) -> float:
    """CPU microseconds a turn."""
    keys = [EpisodeKey.first(run=0, step=1, place=place) for place in range(episodes)]
    completion = seal(range(200), [-0.5] * 200, [3] * 200, StopReason.STOP)
    new, log = [5] * 100, TurnLog(file, 0)
    started = time.process_time()
    for turn in range(turns):
        log.write_completion(keys[turn % episodes], new, completion, calls=False)
    spent = time.process_time() - started
    log.forget()
    log.close()
    return 1e6 * spent / turns


class Silent(ScriptedEngine):
    """Takes requests and never answers."""

    asked: asyncio.Semaphore

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """Wait for ever."""
        self.asked.release()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def weigh_open_episodes(episodes: int, codec: Codec) -> float:
    """Kilobytes of Python's memory that each takes."""
    services = EnvServices()
    engine = Silent(Calculator.expert(), codec.renderer(Calculator().tool_schemas), vocab_size=768)
    engine.asked = asyncio.Semaphore(0)
    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=600.0, setup_s=60.0)
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=episodes, attempts=1, max_invalid_share=1.0
    )

    def draw(ticket: int) -> GroupJob:
        return GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=ticket),
            env="calculator",
            make_env=lambda: Calculator(services=services),
            task=Calculator.task_at(ticket, split="train", seed=0),
            split="train",
        )

    gc.collect()
    tracemalloc.start()
    driver = RolloutDriver(
        engine=engine,
        codec=codec,
        settings=settings,
        scheduler=Scheduler(make_schedule(episodes, turns=0)),
        group_size=MEMBERS,
        draw=draw,
    )
    try:
        driver.begin()
        for _ in range(episodes):
            await engine.asked.acquire()
        return tracemalloc.get_traced_memory()[0] / episodes / 1e3
    finally:
        tracemalloc.stop()
        await driver.aclose()
        services.close()


def main() -> int:
    """Print all figures; 1 if they are not flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--executor", choices=("inline", "ray"), default="inline")
    arguments = parser.parse_args()
    if arguments.executor == "ray":
        from benchmarks.overhead_ray import main as main_on_ray

        return main_on_ray(arguments.turns, arguments.repeats)
    schedules = {number: make_schedule(number, arguments.turns) for number in EPISODES}
    events = {number: record_events(schedule) for number, schedule in schedules.items()}
    scheduler: dict[int, list[float]] = {number: [] for number in EPISODES}
    log: dict[int, list[float]] = {number: [] for number in EPISODES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for number in EPISODES:
                scheduler[number].append(time_scheduler(schedules[number], events[number]))
                file = Path(folder) / "turns.jsonl"
                log[number].append(time_log(number, arguments.turns // 10, file))
    codec = Codec(Tokenizer.load(resolve_model("tiny")))
    print("episodes  scheduler us a turn (spread)  log us a turn (spread)  kB an open episode")
    for number in EPISODES:
        memory = asyncio.run(weigh_open_episodes(number, codec))
        cells = [
            f"{median(x):8.1f} ({min(x):.1f} to {max(x):.1f})"
            for x in (scheduler[number], log[number])
        ]
        print(f"{number:8}  {cells[0]:>28}  {cells[1]:>22}  {memory:18.1f}")
    failed = False
    for name, figures in (("scheduler", scheduler), ("log", log)):
        medians = [median(values) for values in figures.values()]
        ratio = max(medians) / min(medians)
        failed |= ratio > MOST_RATIO
        print(f"{name}: most over least {ratio:.2f}, at most {MOST_RATIO} allowed")
    print("below the bar" if failed else "flat")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
