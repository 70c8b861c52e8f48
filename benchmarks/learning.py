"""Does it learn? Warm start, reinforcement, held-out success; a control with permuted rewards.

For each seed: the warm-started model is evaluated on held-out tasks, trained with its rewards as
the presets of the tiny model say, and evaluated again. Then it is trained for a third of the steps
with its rewards permuted, which must teach nothing. The exit code says whether every seed learned,
by bars that none misses by chance; `learning_matrix.py` says how well, and on which processors.

With `--env long_haul` the controls are others: the same run with its summaries masked, and with a
window in place of summaries, all from one warm start with trained summaries. Trained summaries must
beat both outside both intervals. The figures of the first run include the warm start's time.

`--variant grpo` compares within groups, `--variant ppo` with a critic, `--variant lora` trains
adapters. `--variant stale4-tis` samples up to 4 versions ahead and corrects for that.

Usage: python benchmarks/learning.py [--env calculator] [--seeds 0,1,2] [--no-control]
    [--variant ppo]
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentrl.orchestration import jobs
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.evaluate import Interval
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import PlannedRun
from agentrl.trainer.algorithms.estimators import Estimator, make_estimator
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch

MOST_BEFORE = 0.5
LEAST_AFTER = 0.9
"""What the lower end of the interval has to reach: a weak bar, which no seed misses by chance."""
HELD_OUT_TASKS = 1000
CPU_BAR_S = {"calculator": 240.0, "long_haul": 600.0, "number_guess": 720.0}
PATIENCE = 2
"""A slow or a shared machine may take so many times as long."""
# Each page can be read once, so what a summary loses is lost.
FLAGS = {"calculator": [], "number_guess": [], "long_haul": ["--max-turns", "12"]}
LARGE_STEPS = [
    *("--steps", "50", "--tasks-per-step", "32", "--group-size", "8", "--trainer.beta2", "0.95")
]
GRPO = [*LARGE_STEPS, "--trainer.algorithm", "grpo"]
PPO = [*LARGE_STEPS, "--trainer.algorithm", "ppo", "--trainer.critic.lr", "1e-3"]
VARIANTS: dict[str, list[str]] = {
    "": [],
    "grpo": [*GRPO, "--lr", "8e-4"],
    "ppo": [*PPO, "--lr", "8e-4"],
    "lora": [*GRPO, "--trainer.lora.rank", "16", "--lr", "5e-3"],
    "stale1": ["--async.staleness", "1"],
    "stale4": ["--async.staleness", "4"],
    "stale1-tis": ["--async.staleness", "1", "--trainer.correct", "tis"],
    "stale4-tis": ["--async.staleness", "4", "--trainer.correct", "tis"],
}
SUMMARISE = ["--context", "summarise", "--context.at", "96"]
CONTEXTS = {
    "masked summaries": [*SUMMARISE, "--context.trained", "false"],
    "window": ["--context", "window", "--context.at", "96"],
}
"""The controls of `long_haul`."""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One training run."""

    warm: Interval
    final: Interval
    success: Sequence[float]
    """Of the training episodes, per step."""
    wall_s: float
    cpu_s: float


def learn(
    env: str,
    seed: int,
    runs: Path,
    *,
    threads: int = 1,
    context: str = "",
    variant: str = "",
    beside: Curve | None = None,
) -> Curve:
    """Train once; the time includes the warm start, if this run is the first to need it.

    With `beside`, a run from the same start, this is its control: a third of its steps, on rewards
    that are permuted before they become advantages.
    """
    wall, cpu = time.perf_counter(), cpu_seconds()
    flags = settings(env, seed, runs, threads)
    if env == "long_haul":
        flags += ["--model", str(warm_model(seed, runs, threads))]
    flags += [*FLAGS[env], *CONTEXTS.get(context, []), *VARIANTS[variant]]
    if beside is not None:
        flags += ["--steps", str(len(beside.success) // 3)]
    loaded = load_run_config(flags=flags)
    objects = NO_OBJECTS
    if beside is not None:
        objects = Overrides(given={"<permuted>": permuted(loaded.config.trainer, seed)})
        loaded = load_run_config(flags=[*flags, "--estimator", "<permuted>"], objects=objects)
    with PlannedRun(loaded, objects=objects) as run:
        warm = run.evaluate().pass_at[1] if beside is None else beside.warm
        success = [step.metrics["success"] for step in run]
        final = run.evaluate().pass_at[1]
    return Curve(
        warm=warm,
        final=final,
        success=success,
        wall_s=time.perf_counter() - wall,
        cpu_s=cpu_seconds() - cpu,
    )


def settings(env: str, seed: int, runs: Path, threads: int = 1) -> list[str]:
    """The flags of every run; all else is what the presets say."""
    flags = ["--env", env, "--seed", str(seed), "--threads", str(threads)]
    return [*flags, "--runs-dir", str(runs), "--eval.tasks", str(HELD_OUT_TASKS)]


def warm_model(seed: int, runs: Path, threads: int) -> Path:
    """The warm-started model of `long_haul`, made by the first run that asks for it."""
    name = f"warm-{seed}"
    if not (runs / name).exists():
        flags = settings("long_haul", seed, runs, threads)
        jobs.sft(load_run_config(flags=[*flags, "--name", name]))
    return runs / name / "model"


def permuted(config: TrainerConfig, seed: int) -> Estimator:
    """The run's own estimator, on rewards dealt out anew over all episodes of the batch."""
    own = make_estimator(config)
    rng = np.random.default_rng(seed)

    @needs(*own.needs)
    def estimate(batch: Batch) -> NDArray[np.float32]:
        order = rng.permutation(len(batch.rewards_E))
        parts = {name: values_E[order] for name, values_E in batch.parts_E.items()}
        dealt = replace(batch, rewards_E=batch.rewards_E[order], parts_E=parts)
        if batch.turn_rewards_U is None or batch.turn_offsets_E1 is None:
            return own(dealt)
        # An episode's turns are not another's, so all that it gets stands on its last one.
        turn_rewards_U = np.zeros_like(batch.turn_rewards_U)
        turn_rewards_U[batch.turn_offsets_E1[1:] - 1] = dealt.rewards_E
        return own(replace(dealt, turn_rewards_U=turn_rewards_U))

    return estimate


def cpu_seconds() -> float:
    """CPU time of this process and of its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def faults(env: str, real: Curve, control: Curve | None) -> list[str]:
    """What a seed did not do; nothing if it learned."""
    failures: list[str] = []
    if real.warm.value > MOST_BEFORE:
        failures.append(f"the warm start has {real.warm.value:.3f}, at most {MOST_BEFORE} allowed")
    if real.final.low < LEAST_AFTER or real.final.low <= real.warm.high:
        failures.append(
            f"training went from {real.warm} to {real.final}; its interval has to begin above the "
            f"warm start's, at {LEAST_AFTER} or more"
        )
    most = PATIENCE * CPU_BAR_S[env]
    if real.cpu_s > most:
        failures.append(f"it took {real.cpu_s:.0f} CPU s, at most {most:.0f} allowed")
    if control is not None and control.final.value > control.warm.high:
        failures.append(
            f"permuted rewards reached {control.final.value:.3f}, "
            f"above the warm start's interval ({control.warm})"
        )
    return failures


def show(name: str, curve: Curve) -> None:
    """One line: held-out success before and after, time, and the curve."""
    points = curve.success[:: max(1, len(curve.success) // 50)]
    drawn = "".join(BARS[min(7, int(8 * value))] for value in points)
    print(
        f"{name:24s} held-out {curve.warm} -> {curve.final}   "
        f"{curve.wall_s:4.0f} s, {curve.cpu_s:4.0f} CPU s   {drawn}",
        flush=True,
    )


def beats_its_controls(real: Curve, seed: int, folder: Path) -> bool:
    """Train with each of `CONTEXTS`; true if each ends below the interval of `real`."""
    beaten = True
    for name in CONTEXTS:
        other = learn("long_haul", seed, folder, context=name)
        show(f"  {name}", other)
        if other.final.high >= real.final.low:
            beaten = False
            print(f"  below the bar: {real.final} is not above {name} ({other.final})")
    return beaten


def main() -> int:
    """Run the seeds; 0 if all of them learned."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--env", default="calculator", choices=sorted(CPU_BAR_S))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--variant", default="", choices=VARIANTS)
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AGENTRL_CACHE"] = f"{folder}/cache"  # so that the warm start is timed too
        for seed in (int(text) for text in arguments.seeds.split(",")):
            real = learn(arguments.env, seed, Path(folder), variant=arguments.variant)
            show(f"{arguments.env} {arguments.variant} seed {seed}", real)
            control = None
            if arguments.env == "long_haul" and not arguments.no_control:
                failed |= not beats_its_controls(real, seed, Path(folder))
            elif not arguments.no_control:
                control = learn(arguments.env, seed, Path(folder), beside=real)
                show("  permuted rewards", control)
            for failure in faults(arguments.env, real, control):
                failed = True
                print(f"  below the bar: {failure}")
    print("below the bar" if failed else "all seeds learned")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
