"""Does it learn? Warm start, reinforcement, held-out success; a control with permuted rewards.

For each seed: the warm-started model is evaluated on held-out tasks, trained with its rewards, and
evaluated again; then the same is done with the rewards permuted, which must teach nothing. The
exit code says whether every seed met the bar.

With `--env long_haul` the controls are others: the same run with its summaries masked, and with a
window in place of summaries, all from one warm start with trained summaries. Trained summaries must
beat both outside both intervals. The figures of the first run include the warm start's time.

`--variant ppo` trains with a critic instead of groups, `--variant lora` trains adapters.

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
from agentrl.orchestration.controller import Estimator, grpo
from agentrl.orchestration.intervals import Interval
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import Run
from agentrl.types import Batch

MOST_BEFORE = 0.5
LEAST_AFTER = {"calculator": 0.95, "long_haul": 0.9, "number_guess": 0.95}
HELD_OUT_TASKS = 512
WALL_BAR_S = {"calculator": 300.0, "long_haul": 900.0, "number_guess": 600.0}
CPU_BAR_S = {"calculator": 480.0, "long_haul": 900.0, "number_guess": 960.0}
LONG_HAUL = [
    *("--threads", "1"),
    *("--rollout.max-context-tokens", "144"),  # the pages have 3.2 times that
    *("--rollout.max-turn-tokens", "16"),
]
FLAGS = {
    "calculator": [],
    # A game forgives a few wrong tokens, so its warm start has to leave more of them. With fewer
    # updates one seed in three had not learnt the game: its greedy guesses missed 1 task in 23.
    "number_guess": [
        *("--steps", "110"),
        *("--warm-start.smoothing", "0.08"),
        *("--warm-start.updates", "500"),
    ],
    # Each page can be read once, so what a summary loses is lost. The preset of `tiny` does not
    # reach a model that was warm-started before.
    "long_haul": [
        *LONG_HAUL,
        *("--steps", "40"),
        *("--tasks-per-step", "16"),
        *("--max-turns", "12"),
        *("--lr", "8e-4"),
        *("--trainer.schedule", "linear"),
        *("--trainer.warmup-steps", "3"),
        *("--engine.slots", "256"),
    ],
}
VARIANTS: dict[str, list[str]] = {
    "": [],
    "ppo": ["--trainer.algorithm", "ppo", "--trainer.critic.lr", "1e-3"],
    "lora": ["--trainer.lora.rank", "16", "--lr", "5e-3"],
}
WARM_START = [
    *LONG_HAUL,
    *("--warm-start.updates", "300"),
    *("--warm-start.batch", "8"),
    *("--warm-start.lr", "3e-3"),
    *("--warm-start.smoothing", "0"),
]
"""Of `long_haul`: a demonstration may read the pages again, so its summaries may lose the key."""
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
    env: str, seed: int, runs: Path, *, control: bool = False, context: str = "", variant: str = ""
) -> Curve:
    """Train once; with `control` the rewards are permuted before they become advantages."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    flags = ["--env", env, "--seed", str(seed), "--runs-dir", str(runs)]
    if env == "long_haul":
        flags += ["--model", str(warm_model(seed, runs))]
    flags += ["--name", f"{env}-{seed}{'-control' if control else context.replace(' ', '-')}"]
    flags += CONTEXTS.get(context, [])
    flags += ["--eval.tasks", str(HELD_OUT_TASKS)]
    loaded = load_run_config(flags=[*flags, *FLAGS[env], *VARIANTS[variant]])
    with Run(loaded, estimator=permuted(seed) if control else None) as run:
        warm = run.evaluate()
        success = [step.metrics["success"] for step in run]
        final = run.evaluate()
    return Curve(
        warm=warm.pass_at[1],
        final=final.pass_at[1],
        success=success,
        wall_s=time.perf_counter() - wall,
        cpu_s=cpu_seconds() - cpu,
    )


def warm_model(seed: int, runs: Path) -> Path:
    """The warm-started model of `long_haul`, made by the first run that asks for it."""
    name = f"warm-{seed}"
    if not (runs / name).exists():
        flags = ["--env", "long_haul", "--seed", str(seed), "--runs-dir", str(runs)]
        jobs.sft(load_run_config(flags=[*flags, "--name", name, *WARM_START]))
    return runs / name / "model"


def permuted(seed: int) -> Estimator:
    """GRPO on rewards that were dealt out anew over all episodes of the batch."""
    rng = np.random.default_rng(seed)

    def estimate(batch: Batch) -> NDArray[np.float32]:
        return grpo(replace(batch, rewards_E=rng.permutation(batch.rewards_E)))

    return estimate


def cpu_seconds() -> float:
    """CPU time of this process and of its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def passes(env: str, real: Curve, control: Curve | None) -> list[str]:
    """What a seed fails; nothing if it meets the bar."""
    failures: list[str] = []
    if real.warm.value > MOST_BEFORE:
        failures.append(f"the warm start has {real.warm.value:.3f}, at most {MOST_BEFORE} allowed")
    least = LEAST_AFTER[env]
    if real.final.value < least:
        failures.append(f"training reached {real.final.value:.3f}, at least {least} needed")
    if real.wall_s > WALL_BAR_S[env] and real.cpu_s > CPU_BAR_S[env]:
        failures.append(
            f"it took {real.wall_s:.0f} s and {real.cpu_s:.0f} CPU s, "
            f"at most {WALL_BAR_S[env]:.0f} s or {CPU_BAR_S[env]:.0f} CPU s allowed"
        )
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
    """Run the seeds; 0 if all of them meet the bar."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--env", default="calculator", choices=sorted(WALL_BAR_S))
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
                control = learn(arguments.env, seed, Path(folder), control=True)
                show("  permuted rewards", control)
            for failure in passes(arguments.env, real, control):
                failed = True
                print(f"  below the bar: {failure}")
    print("below the bar" if failed else "all seeds meet the bar")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
