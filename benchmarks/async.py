"""Running ahead for real: speed beside the virtual clock's, slow tasks, and what is learned.

    python benchmarks/async.py [--seeds 0,1,2] [--steps 24] [--turn-s 0.5] [--jobs 1]
    python benchmarks/async.py --learning [--seeds 0,1,2]

The workload of `schedule.py`, in real runs: controller, scheduler, driver, an engine that samples
with the tiny model's weights, an update. What turns, updates and publishes take is drawn, by seed,
ticket, member and turn, and slept (see `timed_run.py`); the virtual clock plays the same draws.

Speed: seconds with a staleness of 0, 1 and 4. Slow tasks: the share that the tenth of the groups
with the longest episodes has of the trained episodes, beside its share of those that began.
`--learning`: success on held-out tasks against trained tokens, and rewards against time.
The exit code is 1 below the bars.
"""

import argparse
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median, variance

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.schedule.events import BeginEpisode
from agentrl.testing.virtual_clock import draw_attempt
from benchmarks.algorithms_learning import PLANS, warm_model
from benchmarks.learning import BARS
from benchmarks.schedule import find_bound, measure_generation_s
from benchmarks.timed_run import Played, TimedRun, play

STALENESS = (0, 1, 4)
LEAST_SPEED = 3.3
"""Of a staleness of 4, as a multiple of the synchronous one's."""
LEAST_OF_SIMULATED = 0.95
"""The same, as a share of what the virtual clock gives."""
MOST_APART = 0.1
"""Real and simulated seconds, as a share of the simulated ones."""
MOST_SHARE_LOST = 0.02
"""Of the slow tasks' share, as a part of it: it is a tenth, so two points would be a fifth of it.
"""
STUDENT_T = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447}
"""The 97.5 % quantiles of the t distribution."""
WIDEST = 0.05
"""Half of the widest interval of a difference in success that says anything."""


def play_all(runs: Sequence[TimedRun], jobs: int, folder: Path) -> list[Played]:
    """Each in a process of its own, from one warm-started model; a log has what they print."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(AGENTRL_CACHE=f"{folder}/cache", OMP_NUM_THREADS="1")
    with ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=1,
        initializer=_send_output_to_log,
        initargs=(folder / "log.txt",),
    ) as pool:
        model = pool.submit(warm_model, PLANS["walk"], 0, folder).result()
        played = [pool.submit(play, run, model, folder) for run in runs]
        return [future.result() for future in played]


def _send_output_to_log(log: Path) -> None:
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)


def judge_speed(all_played: Sequence[Played]) -> Iterator[str]:
    """Print a row for each run, and the medians; what misses a bar is given."""
    bound = find_bound(all_played[0].run.generation_s, all_played[0].run.turn_s)
    print(
        f"no schedule is more than {bound:.2f}x as fast as the synchronous one\n"
        "staleness  seed       s  virtual clock  real / virtual  speed-up  virtual clock"
        "  real / virtual  age  CPU share  update  turns missing  load"
    )
    first: dict[int, tuple[float, float]] = {}
    speeds: dict[int, list[tuple[float, float, float]]] = {k: [] for k in STALENESS}
    for played in all_played:
        run, real, simulated = played.run, played.seconds, played.run.simulate().seconds
        of_real, of_simulated = first.setdefault(run.seed, (real, simulated))
        speed, expected = of_real / real, of_simulated / simulated
        speeds[run.staleness].append((real / simulated, speed, expected))
        print(
            f"{run.staleness:9}  {run.seed:4}  {real:6.1f}  {simulated:13.1f}"
            f"  {real / simulated:14.3f}  {speed:7.2f}x  {expected:12.2f}x"
            f"  {speed / expected:14.3f}  {mean(played.ages):3.1f}"
            f"  {played.cpu_s / real / (os.cpu_count() or 1):9.0%}"
            f"  {mean(played.update_s):4.1f} s  {played.turns_missing:13}  {played.load:4.1f}"
        )
    for staleness, of_seeds in speeds.items():
        apart, speed, expected = (median(column) for column in zip(*of_seeds, strict=True))
        found = [real for _, real, _ in of_seeds]
        print(
            f"staleness {staleness}: {speed:.2f}x ({min(found):.2f} to {max(found):.2f}), "
            f"the virtual clock gives {expected:.2f}x; {apart:.3f} of its seconds"
        )
        if abs(apart - 1) > MOST_APART:
            yield f"staleness {staleness} takes {apart:.3f} of the virtual clock's seconds"
        if staleness == STALENESS[-1]:
            share = median(real / simulated for _, real, simulated in of_seeds)
            if speed < LEAST_SPEED or share < LEAST_OF_SIMULATED:
                yield (
                    f"staleness {staleness} is {speed:.2f}x as fast, {share:.3f} of what the "
                    f"virtual clock gives; {LEAST_SPEED}x and {LEAST_OF_SIMULATED} are the bars"
                )


def find_slow_share(played: Played) -> tuple[float, float]:
    """The share that the slowest tenth of the groups has: of episodes begun, and of those trained.

    A group is as slow as the longest of its episodes is by its draws.
    """
    run, members = played.run, range(played.run.schedule.members)
    drawn_s: Mapping[int, float] = {
        ticket: max(
            sum(draw_attempt(run.workload, BeginEpisode(ticket, member, 0), seed=run.seed).turns_s)
            for member in members
        )
        for ticket in played.begun
    }
    ranked = sorted(drawn_s, key=lambda ticket: drawn_s[ticket], reverse=True)
    slow = ranked[: round(len(ranked) / 10)]
    trained = sum(played.trained.values())
    return len(slow) / len(ranked), sum(played.trained.get(t, 0.0) for t in slow) / trained


def judge_slow_tasks(all_played: Sequence[Played]) -> Iterator[str]:
    """Print a row for each way to treat late groups; what misses a bar is given."""
    print("late  staleness  seed  slow tasks begun  trained  lost of it")
    for played in all_played:
        begun, trained = find_slow_share(played)
        run, lost = played.run, 1 - trained / begun
        print(
            f"{run.late:4}  {run.staleness:9}  {run.seed:4}  {begun:16.2%}  {trained:7.2%}"
            f"  {lost:10.1%}"
        )
        if run.late == "wait" and abs(lost) > MOST_SHARE_LOST:
            yield f"slow tasks are {trained:.2%} of the trained episodes, {begun:.2%} of the begun"


def judge_learning(all_played: Sequence[Played]) -> Iterator[str]:
    """Print success against tokens and rewards against time; what misses a bar is given."""
    found: dict[int, list[float]] = {}
    longest_s = max(played.seconds for played in all_played)
    print(
        "staleness  seed  before -> after                tokens       s  rewards, over equal times"
    )
    for played in all_played:
        run, before, after = played.run, played.before, played.after
        assert before is not None
        assert after is not None
        found.setdefault(run.staleness, []).append(after.value)
        at = np.linspace(0, longest_s, 41)[1:]
        curve = [
            BARS[min(7, int(8 * reward))] if second < played.seconds else " "
            for second, reward in zip(at, np.interp(at, played.ends_s, played.rewards), strict=True)
        ]
        print(
            f"{run.staleness:9}  {run.seed:4}  {before.value:.3f} -> {after}"
            f"  {played.tokens[-1]:6}  {played.seconds:6.1f}  {''.join(curve)}"
        )
        if after.low <= before.high:
            yield f"staleness {run.staleness}, seed {run.seed} learned nothing: {before} to {after}"
    print_curves(all_played)
    for staleness in STALENESS[1:]:
        yield from compare_success(staleness, found[staleness], found[0])


def print_curves(all_played: Sequence[Played]) -> None:
    """The mean reward over the seeds at some counts of trained tokens, and at some times."""
    least = min(played.tokens[-1] for played in all_played)
    longest_s = max(played.seconds for played in all_played)
    for what, unit, most in (("tokens", "", least), ("ends_s", " s", longest_s)):
        at = most * np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])
        print(f"reward at{unit} " + "  ".join(f"{point:6.0f}" for point in at))
        for staleness in STALENESS:
            chosen = [p for p in all_played if p.run.staleness == staleness]
            rows = np.array([np.interp(at, getattr(p, what), p.rewards) for p in chosen])
            print(f"staleness {staleness}  " + "  ".join(f"{r:6.3f}" for r in rows.mean(0)))


def compare_success(
    staleness: int, ahead: Sequence[float], synchronous: Sequence[float]
) -> Iterator[str]:
    """The 95 % interval of the difference, by the seeds' deviations."""
    difference = mean(ahead) - mean(synchronous)
    if len(ahead) < 2:
        return
    deviation = math.sqrt((variance(ahead) + variance(synchronous)) / len(ahead))
    half = STUDENT_T[2 * len(ahead) - 2] * deviation
    print(f"staleness {staleness} - 0: {difference:+.3f} +- {half:.3f}")
    if abs(difference) > half or half > WIDEST:
        yield (
            f"success with a staleness of {staleness} differs by {difference:+.3f} +- {half:.3f}; "
            f"0 has to be in the interval, and the interval within {WIDEST} of its middle"
        )


def main() -> int:
    """Play all runs; 0 if every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--turn-s", type=float, help="mean seconds of a turn: 0.5, or 0.2")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--folder", type=Path, help="keeps the runs and the warm-started model")
    options = parser.parse_args()
    seeds = [int(text) for text in options.seeds.split(",")]
    turn_s: float = options.turn_s or (0.2 if options.learning else 0.5)
    make = partial(
        TimedRun,
        steps=options.steps,
        turn_s=turn_s,
        generation_s=measure_generation_s(200, range(3), turn_s),
    )
    runs = [
        make(seed=seed, staleness=staleness, evaluates=options.learning)
        for staleness, seed in product(STALENESS, seeds)
    ]
    if not options.learning:
        runs += [make(seed=seeds[0], staleness=1, late=late) for late in ("mask", "drop")]
    with tempfile.TemporaryDirectory() as folder:
        played = play_all(runs, options.jobs, options.folder or Path(folder))
    if options.learning:
        missed = [*judge_learning(played)]
    else:
        waiting = [each for each in played if each.run.late == "wait"]
        missed = [*judge_speed(waiting)]
        missed += judge_slow_tasks([each for each in played if each.run.staleness])
    print("\n".join(missed) or "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
