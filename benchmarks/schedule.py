"""What running ahead gains, and what the scheduler costs, under the virtual clock.

    python benchmarks/schedule.py [--steps 200] [--seeds 3]

64 places for episodes of 1 to 8 turns, turns log-normal with sigma 1.0, training 0.2 of the mean
synchronous generation time, publishing 0.02. A queue model gives 1.9x for a staleness of 1, 2.8x
for 2 and 3.9x for 4. Then events per CPU second, those of the simulated world included, with 64 and
4,096 episodes at once. In between, what a synchronous run gains and loses by half as many groups
more than it needs, with a place for each, and by leaving a quarter of a group behind. Exits with 1
below 20,000 events per CPU second.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.schedule import Allowance, Schedule
from agentrl.testing.virtual_clock import Workload, lognormal, simulate

MODEL = {0: 1.0, 1: 1.9, 2: 2.8, 4: 3.9}
LEAST_EVENTS_PER_S = 20_000
TURN_S = 10.0
"""Seconds of a turn in the mean, its tool included."""
MOST_TURNS = 8
TRAIN, PUBLISH = 0.2, 0.02
"""Shares of the mean time that a synchronous step's episodes take."""


def make_workload(generation_s: float = 0.0, turn_s: float = TURN_S) -> Workload:
    """Updates take a share of the time that a step's episodes take."""
    return Workload(
        num_turns=lambda rng: rng.randint(1, MOST_TURNS),
        turn_s=lognormal(turn_s, 1.0),
        train_s=TRAIN * generation_s,
        publish_s=PUBLISH * generation_s,
    )


def make_schedule(steps: int, staleness: int, groups: int = 8) -> Schedule:
    """Groups of 8, with a place for each episode of a step."""
    return Schedule(
        groups_per_step=groups,
        members=8,
        steps=steps,
        staleness=staleness,
        concurrency=8 * groups,
    )


def measure_generation_s(steps: int, seeds: Sequence[int], turn_s: float = TURN_S) -> float:
    """The mean time that a synchronous step's episodes take."""
    synchronous, workload = make_schedule(steps, 0), make_workload(turn_s=turn_s)
    return mean(simulate(synchronous, workload, seed=seed).step_s for seed in seeds)


def find_bound(generation_s: float, turn_s: float = TURN_S) -> float:
    """How much faster than synchronous no schedule is: all places are taken, or the trainer works.

    An episode takes its mean time in its place, and nobody goes on while weights are published.
    """
    publish_s = PUBLISH * generation_s
    episode_s = turn_s * (1 + MOST_TURNS) / 2
    trainer_s = TRAIN * generation_s + publish_s
    return (generation_s + trainer_s) / max(trainer_s, episode_s + publish_s)


def measure_speedups(steps: int, seeds: Sequence[int]) -> None:
    """Print a row for each staleness."""
    generation_s = measure_generation_s(steps, seeds)
    workload, first = make_workload(generation_s), 0.0
    print(
        f"mean synchronous generation time {generation_s:.1f} s, {steps} steps, {len(seeds)} seeds;"
        f" no schedule is more than {find_bound(generation_s):.2f}x as fast"
    )
    print("staleness  s a step  speed-up  queue model  trainer  places  staleness mean  max")
    for staleness, model in MODEL.items():
        runs = [simulate(make_schedule(steps, staleness), workload, seed=s) for s in seeds]
        step_s = mean(run.step_s for run in runs)
        first = first or step_s
        ages = [age for run in runs for age in run.staleness]
        print(
            f"{staleness:9}  {step_s:8.1f}  {first / step_s:7.2f}x  {model:10.1f}x"
            f"  {mean(run.trainer_busy for run in runs):7.0%}"
            f"  {mean(run.engine_busy for run in runs):6.0%}  {mean(ages):14.2f}  {max(ages):3}"
        )


def measure_allowances(steps: int, seeds: Sequence[int]) -> None:
    """Print a row for each way to wait for fewer episodes, at a staleness of 0."""
    workload, first = make_workload(measure_generation_s(steps, seeds)), 0.0
    schedule = replace(make_schedule(steps, 0, groups=8), late="drop", concurrency=None)
    print("surplus  stragglers  s a step  speed-up  lost")
    for surplus, stragglers in ((0, 0.0), (0, 0.25), (4, 0.0), (4, 0.25)):
        allowance = Allowance(surplus=surplus, stragglers=stragglers)
        runs = [simulate(schedule, workload, allowance, seed=seed) for seed in seeds]
        step_s = mean(run.step_s for run in runs)
        first = first or step_s
        lost = mean(len(run.lost) / (len(run.lost) + len(run.trained)) for run in runs)
        print(f"{surplus:7}  {stragglers:10}  {step_s:8.1f}  {first / step_s:7.2f}x  {lost:4.0%}")


def measure_events_per_s(episodes: int) -> float:
    """Events per CPU second with so many episodes at once, at a staleness of 4."""
    schedule = make_schedule(max(3, 16_384 // episodes), 4, groups=episodes // 8)
    workload = make_workload(200.0)
    started = time.process_time()
    run = simulate(schedule, workload)
    return run.events / (time.process_time() - started)


def main() -> int:
    """Print all figures; 1 if the scheduler is slower than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    measure_speedups(options.steps, range(options.seeds))
    measure_allowances(options.steps, range(options.seeds))
    rates = {episodes: measure_events_per_s(episodes) for episodes in (64, 4096)}
    for episodes, rate in rates.items():
        print(f"{episodes:5} episodes: {rate:9,.0f} events per CPU second")
    return 1 if min(rates.values()) < LEAST_EVENTS_PER_S else 0


if __name__ == "__main__":
    sys.exit(main())
