"""Success against sampled tokens for each algorithm: equal budgets, some seeds, controls.

    python benchmarks/algorithms_learning.py [RESULTS] [--seeds 5] [--only grpo,rloo] [--tasks keys]
        [--quick] [--figure FILE.png] [--jobs 1]

All runs of a task and a seed begin with the same warm-started model and end when they have sampled
the task's budget of tokens. Beside each run is its control: the same on rewards dealt out anew over
all episodes of a step, which must teach nothing; `distill`, which reads no rewards, has none. Each
run is a process of its own with one thread and one line of RESULTS; a benchmark that was stopped
goes on with the runs that the file lacks.

`keys` is one answer to one key. `walk` is twelve of them in an episode, where an algorithm that
gives credit by step has more to go by. `speed` has a cost beside its reward (see
`learning_tasks.py`). The exit code is 1 where an algorithm does not end above its control by the
spread of both, where `safe_grpo` does not end below the limit of the cost in four of five
seeds, or `grpo` does.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from unittest.mock import patch

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.orchestration import jobs
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import PlannedRun
from agentrl.rollout import Collected
from agentrl.trainer.algorithms.recipe import BatchRecipe
from agentrl.trainer.protocol import Trainer
from agentrl.types import Batch
from benchmarks.learning import cpu_seconds
from benchmarks.learning_tasks import COST_LIMIT

TASKS_FILE = Path(__file__).with_name("learning_tasks.py")
CRITIC = ["--trainer.critic.lr", "1e-3", "--trainer.critic.updates", "4"]
ALGORITHMS: Mapping[str, Sequence[str]] = {
    "grpo": [],
    "dr_grpo": [],
    "rloo": [],
    "reinforce_pp": [],
    "dapo": [],
    "gspo": [],
    "cispo": [],
    "ppo": CRITIC,
    "vapo": [*CRITIC, "--trainer.critic.pretrain", "2"],
    "gigpo": [],
    "remax": ["--rollout.greedy-member"],
    "distill": [],
    "safe_grpo": ["--trainer.cost.part", "cost", "--trainer.cost.limit", str(COST_LIMIT)],
}
"""With the flags that each needs beside `--algorithm`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """How a task is trained."""

    env: str
    budget: int
    """Tokens that a run samples."""
    tasks_per_step: int
    flags: Sequence[str] = ()
    algorithms: Sequence[str]
    warm_updates: int


_ALL = [name for name in ALGORITHMS if name not in ("gigpo", "safe_grpo")]
PLANS: Mapping[str, TaskPlan] = {
    "keys": TaskPlan(
        env="Keys",
        budget=16_000,
        tasks_per_step=32,
        algorithms=_ALL,
        warm_updates=300,
    ),
    "walk": TaskPlan(
        env="Walk",
        budget=50_000,
        tasks_per_step=8,
        algorithms=["grpo", "gigpo", "reinforce_pp"],
        warm_updates=200,
    ),
    "speed": TaskPlan(
        env="Speed",
        budget=16_000,
        tasks_per_step=32,
        algorithms=["grpo", "safe_grpo"],
        warm_updates=100,
    ),
}
GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one run came to."""

    task: str
    algorithm: str
    seed: int
    permuted: bool
    budget: int
    tokens: Sequence[int]
    """Sampled until the end of each step."""
    rewards: Sequence[float]
    """The mean reward of each step's episodes."""
    costs: Sequence[float]
    before: float
    """Mean reward on held-out tasks."""
    after: float
    cpu_s: float

    @property
    def key(self) -> tuple[str, str, int, bool, int]:
        """What sets it apart."""
        return (self.task, self.algorithm, self.seed, self.permuted, self.budget)


def flags_of(plan: TaskPlan, algorithm: str, seed: int, runs: Path, model: Path) -> list[str]:
    """The command line of a run."""
    group = GROUP - (algorithm == "remax")  # its greedy member takes a place
    return [
        *("--env", f"{TASKS_FILE}:{plan.env}", "--model", str(model), "--seed", str(seed)),
        *("--runs-dir", str(runs), "--threads", "1", "--lr", "3e-4", "--eval.tasks", "256"),
        *("--tasks-per-step", str(plan.tasks_per_step), "--group-size", str(group)),
        *("--rollout.max-new-tokens", "4", "--steps", "1000", "--algorithm", algorithm),
        *(*ALGORITHMS.get(algorithm, CRITIC), *plan.flags),
    ]


def warm_model(plan: TaskPlan, seed: int, folder: Path, *, knows: bool = False) -> Path:
    """The model that all runs of a task and a seed begin with, made by the first that asks.

    With `knows` it has seen the rule in all demonstrations: the teacher of `distill`.
    """
    name = f"{plan.env}-{seed}" + ("-teacher" if knows else "")
    if not (folder / name / "model").exists():
        flags = ["--env", f"{TASKS_FILE}:{plan.env}", "--env.any-digit", "--seed", str(seed)]
        flags += ["--threads", "1", "--runs-dir", str(folder), "--name", name]
        flags += ["--warm-start.updates", str(plan.warm_updates)]
        flags += ["--env.known", "1.0"] if knows else []
        jobs.sft(load_run_config(flags=flags))
    return folder / name / "model"


def train(
    task: str, algorithm: str, seed: int, budget: int, *, shuffled: bool, folder: Path
) -> Trained:
    """Train until the budget is sampled."""
    plan, started = PLANS[task], cpu_seconds()
    flags = flags_of(plan, algorithm, seed, folder, warm_model(plan, seed, folder))
    if algorithm == "distill":
        flags += ["--trainer.reference", str(warm_model(plan, seed, folder, knows=True))]
    flags += [
        "--name",
        f"{task}-{algorithm}-{seed}-{'permuted' if shuffled else 'real'}-{time.time_ns()}",
    ]
    tokens, rewards, costs = [0], list[float](), list[float]()
    with (
        dealt_rewards(seed) if shuffled else nullcontext(),
        PlannedRun(load_run_config(flags=flags)) as run,
    ):
        before = run.evaluate().reward
        for step in run:
            tokens.append(tokens[-1] + count_sampled(step.collected))
            rewards.append(round(mean(e.reward for e in step.collected.scored), 4))
            costs.append(round(mean_cost(step.collected), 4))
            if tokens[-1] >= budget:
                break
        after = run.evaluate().reward
    return Trained(
        task=task,
        algorithm=algorithm,
        seed=seed,
        permuted=shuffled,
        budget=budget,
        tokens=tokens[1:],
        rewards=rewards,
        costs=costs,
        before=before,
        after=after,
        cpu_s=round(cpu_seconds() - started, 1),
    )


@contextmanager
def dealt_rewards(seed: int) -> Generator[None]:
    """Whatever reads rewards (estimator, loss, critic) gets those of another episode."""
    rng, prepare = np.random.default_rng(seed), BatchRecipe.prepare

    def deal(recipe: BatchRecipe, batch: Batch, trainer: Trainer) -> Batch:
        order = rng.permutation(len(batch.rewards_E))
        parts_E = {name: values_E[order] for name, values_E in batch.parts_E.items()}
        batch = replace(batch, rewards_E=batch.rewards_E[order], parts_E=parts_E)
        if batch.turn_rewards_U is not None and batch.turn_offsets_E1 is not None:
            # An episode's turns are not another's, so all that it gets stands on its last one.
            turn_rewards_U = np.zeros_like(batch.turn_rewards_U)
            turn_rewards_U[batch.turn_offsets_E1[1:] - 1] = batch.rewards_E
            batch = replace(batch, turn_rewards_U=turn_rewards_U)
        return prepare(recipe, batch, trainer)

    with patch.object(BatchRecipe, "prepare", deal):
        yield


def count_sampled(collected: Collected) -> int:
    """The tokens that a step sampled, with those that nobody trains on."""
    played = [*collected.scored, *collected.greedy]
    return sum(turn.num_sampled for episode in played for turn in episode.turns)


def mean_cost(collected: Collected) -> float:
    """The part `cost` of the episodes' scores; 0 where there is none."""
    costs = [sum(t.parts.get("cost", 0.0) for t in e.turns) for e in collected.scored]
    return mean(costs) if costs else 0.0


def has_no_control(task: str, algorithm: str) -> bool:
    """True where rewards dealt out anew would say nothing: a bar of costs, or no rewards at all."""
    return task == "speed" or algorithm == "distill"


def finished(results: Path) -> dict[tuple[str, str, int, bool, int], Trained]:
    """The runs that the file has, by what sets them apart."""
    if not results.exists():
        return {}
    runs = [Trained(**orjson.loads(line)) for line in results.read_bytes().splitlines()]
    return {run.key: run for run in runs}


def start_run(results: Path, folder: Path, key: tuple[str, str, int, bool, int]) -> None:
    """Train in a process of its own, which adds a line to the results."""
    one = orjson.dumps(key).decode()
    command = [sys.executable, __file__, str(results), "--runs", str(folder), "--one", one]
    with (folder / "log.txt").open("ab") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


def run_one(results: Path, folder: Path, one: str) -> None:
    """The process of one run."""
    task, algorithm, seed, shuffled, budget = orjson.loads(one)
    found = train(task, algorithm, seed, budget, shuffled=shuffled, folder=folder)
    with results.open("ab") as file:
        file.write(orjson.dumps(asdict(found), option=orjson.OPT_APPEND_NEWLINE))


def spread(values: Sequence[float]) -> float:
    """The sample's standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0


def area(run: Trained) -> float:
    """The mean reward over the tokens of the budget: how early a run learned."""
    sampled = np.diff([0, *run.tokens])
    return float(np.average(run.rewards, weights=sampled))


def judge(runs: Sequence[Trained]) -> Iterator[str]:
    """Print a table for each task; what misses a bar is given."""
    cells: dict[tuple[str, str, bool], list[Trained]] = defaultdict(list)
    for run in runs:
        cells[run.task, run.algorithm, run.permuted].append(run)
    for task in PLANS:
        names = [name for at, name, shuffled in cells if at == task and not shuffled]
        if names:
            print(f"\n{task:16s} before   after (spread)   over the budget   permuted   CPU s")
        for name in names:
            real, control = cells[task, name, False], cells[task, name, True]
            after = [run.after for run in real]
            other = [run.after for run in control] or [float("nan")]
            print(
                f"  {name:14s} {mean(run.before for run in real):6.3f}   {mean(after):.3f} "
                f"({spread(after):.3f})   {mean(map(area, real)):.3f} "
                f"({spread([*map(area, real)]):.3f})     {mean(other):.3f}    "
                f"{mean(run.cpu_s for run in real):4.0f}   {len(real)} seeds"
                + (f"   cost {mean(run.costs[-1] for run in real):.3f}" if task == "speed" else "")
            )
            if (
                task != "speed"
                and control
                and mean(after) - spread(after) <= mean(other) + spread(other)
            ):
                yield f"{name} on {task} does not end above its control"
    yield from judge_costs(cells["speed", "grpo", False], cells["speed", "safe_grpo", False])


def judge_costs(free: Sequence[Trained], safe: Sequence[Trained]) -> Iterator[str]:
    """What misses the bar of costs: the last tenth of a run's steps counts."""

    def last(run: Trained) -> float:
        return mean(run.costs[-max(1, len(run.costs) // 10) :])

    if safe and sum(last(run) < COST_LIMIT for run in safe) < 0.8 * len(safe):
        yield f"safe_grpo ends at costs {[round(last(r), 3) for r in safe]}, limit {COST_LIMIT}"
    if any(last(run) < COST_LIMIT for run in free):
        yield f"grpo ends at costs {[round(last(r), 3) for r in free]}, below the limit by itself"


def draw(runs: Sequence[Trained], figure: Path) -> None:
    """A panel for each task: mean reward against tokens, with the seeds' spread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = [task for task in PLANS if any(run.task == task for run in runs)]
    drawing, panels = pyplot.subplots(1, len(tasks), figsize=(6 * len(tasks), 4.5), squeeze=False)
    for task, panel in zip(tasks, panels[0], strict=True):
        for name in PLANS[task].algorithms:
            chosen = [r for r in runs if (r.task, r.algorithm, r.permuted) == (task, name, False)]
            if not chosen:
                continue
            at = np.linspace(
                min(r.tokens[0] for r in chosen), min(r.tokens[-1] for r in chosen), 40
            )
            curves = np.array([np.interp(at, r.tokens, r.rewards) for r in chosen])
            (line,) = panel.plot(at, curves.mean(0), label=name)
            low, high = curves.mean(0) - curves.std(0), curves.mean(0) + curves.std(0)
            panel.fill_between(at, low, high, color=line.get_color(), alpha=0.12)
        panel.set(title=task, xlabel="sampled tokens", ylabel="reward of the training episodes")
        panel.legend(fontsize=7)
    drawing.tight_layout()
    drawing.savefig(figure, dpi=110)  # pyright: ignore[reportUnknownMemberType]


def main() -> int:
    """Run what the file lacks; 0 if every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("results", type=Path, nargs="?", default=Path("algorithms_learning.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="names, with a comma between them")
    parser.add_argument("--tasks", default="", help=f"of {', '.join(PLANS)}")
    parser.add_argument("--quick", action="store_true", help="keys alone, with half of its budget")
    parser.add_argument("--figure", type=Path, help="where to draw the curves, such as curves.png")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: beside RESULTS")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    results: Path = options.results
    folder: Path = (options.runs or results.with_suffix(".runs")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["AGENTRL_CACHE"] = str(folder / "cache")
    if options.one:
        run_one(results, folder, options.one)
        return 0
    tasks = options.tasks.split(",") if options.tasks else ["keys"] if options.quick else [*PLANS]
    only = options.only.split(",") if options.only else None
    wanted = [
        (task, name, seed, shuffled, PLANS[task].budget // (1 + options.quick))
        for shuffled in (False, True)
        for seed in range(options.seeds)
        for task in tasks
        for name in PLANS[task].algorithms
        if (only is None or name in only) and not (shuffled and has_no_control(task, name))
    ]
    for plan, seed in sorted({(PLANS[task].env, seed) for task, _, seed, _, _ in wanted}):
        warm_model(next(p for p in PLANS.values() if p.env == plan), seed, folder)
    missing = [key for key in wanted if key not in finished(results)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, _ in enumerate(pool.map(partial(start_run, results, folder), missing)):
            print(f"{number + 1} of {len(missing)} runs", file=sys.stderr, flush=True)
    runs = [finished(results)[key] for key in wanted]
    missed = [*judge(runs)]
    if options.figure:
        draw(runs, options.figure)
    print("\n".join(missed) or "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
