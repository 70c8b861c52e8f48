"""What the passes of each algorithm cost beside what `agentrl algorithm show` says of them.

    python benchmarks/algorithm_cost.py [--rounds 5] [--only ppo,tis]

The episodes of one step of `tiny` on the calculator are trained on again and again by each preset,
with the same made-up rewards, of which no group has equal ones: recipe and update, CPU seconds on
one thread, in turns with those of `reinforce`, which makes no pass but the update's own. Its cost
is 3 passes (forward 1, back 2); one that says that it makes x more is to cost (3 + x) / 3 of that.
Exits 1 where the median of the rounds is off by more than a tenth.
"""

# pyright: reportUnknownMemberType=false

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from agentrl.engine.local.models.load import load_model
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import PlannedRun
from agentrl.rollout import make_batch
from agentrl.trainer.algorithms.catalogue import AlgorithmEntry, entries
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch

OFF = 0.1
ALONE = "reinforce"
"""Makes no pass but the update's own."""


def sample_batch(folder: Path) -> tuple[Batch, Path]:
    """What one step sampled, with what any estimator may ask for; and the model that it was."""
    flags = ["--env", "calculator", "--threads", "1", "--steps", "1", "--runs-dir", str(folder)]
    flags += ["--tasks-per-step", "4"]
    with PlannedRun(load_run_config(flags=[*flags, "--lr", "1e-9", "--name", "one"])) as run:
        (step,) = run
        model = run.result().model
    batch = make_batch(step.collected.episodes, temperature=run.config.rollout.temperature)
    assert batch.turn_offsets_E1 is not None
    episodes, turns = len(batch.rewards_E), batch.turn_offsets_E1[1:] - 1
    rewards_E = np.where(np.arange(episodes) % 2, 1.0, 0.25)
    turn_rewards_U = np.zeros(batch.turn_offsets_E1[-1])
    turn_rewards_U[turns] = rewards_E
    made = replace(
        batch,
        rewards_E=rewards_E,
        turn_rewards_U=turn_rewards_U,
        parts_E={"one": rewards_E, "cost": 1 - rewards_E},
        greedy_E=np.full(episodes, 0.5),
        keys_U=("a",) * len(turn_rewards_U),
    )
    return made, model


def prepare(entry: AlgorithmEntry, batch: Batch, folder: Path) -> Callable[[], float]:
    """What takes one step with this algorithm, and says how many CPU seconds it took."""
    flags = ["--env", "calculator", "--algorithm", entry.name, "--lr", "1e-9"]
    flags += ["--trainer.cost.part", "cost"] if "cost" in entry.needs else []
    # Where the critic learns first, the steps behind that are meant.
    pretrains = "trainer.critic.pretrain" in entry.options
    flags += ["--trainer.critic.pretrain", "0"] if pretrains else []
    config = load_run_config(flags=flags).config.trainer
    teacher = load_model(folder) if "teacher" in entry.needs else None
    if teacher is not None:
        with torch.no_grad():
            next(teacher.parameters()).mul_(1.1)
    trainer = LocalTrainer(load_model(folder), config, total_steps=1000, reference=teacher)
    recipe = make_recipe(config)

    def take_step() -> float:
        started = time.process_time()
        stats = trainer.update(recipe.prepare(batch, trainer))
        assert not stats.skipped, stats.skipped
        return time.process_time() - started

    return take_step


def main() -> int:
    """Print a line for each preset; 1 if one is off."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="names, with a comma between them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    presets = [entry for entry in entries() if entry.kind == "algorithm"]
    alone = next(entry for entry in presets if entry.name == ALONE)
    chosen = [e for e in presets if not options.only or e.name in options.only.split(",")]
    missed = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        batch, model = sample_batch(Path(folder))
        print(f"{batch.num_trained} trained of {batch.num_tokens} tokens; times what {ALONE} costs")
        base = prepare(alone, batch, model)
        base()
        last = base()
        for entry in chosen:
            step, ratios = prepare(entry, batch, model), list[float]()
            step()
            for _ in range(options.rounds):
                before, mine, last = last, step(), base()
                ratios.append(2 * mine / (before + last))
            found, said = statistics.median(ratios), (3 + entry.passes) / 3
            print(
                f"  {entry.name:22} {found:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
                f"said {said:.2f} ({entry.cost})",
                flush=True,
            )
            if abs(found / said - 1) > OFF:
                missed.append(f"{entry.name}: {found:.2f}, said {said:.2f}")
    print("\n".join(missed) or "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
