"""The clip at work: several updates from one batch, with it and without it.

    python benchmarks/trust_region.py [RESULTS] [--seeds 5] [--rates 3e-3] [--budget 4000]

The task `keys` of `algorithms_learning.py` is trained by GRPO with 4 mini-batches and 2 epochs, so
that 7 of 8 updates of a step are by weights that the batch was not sampled with. Beside each run is
the same one, of the same seed, whose bounds no ratio reaches. Each run is a line of RESULTS; a
benchmark that was stopped goes on with those that the file lacks.

Exits 1 unless `loss/clip_fraction` is above 0 in each clipped run and, at the highest rate, runs
without clipping have less reward over the budget than those of the same seed with it, on average by
more than the standard error of that difference.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import PlannedRun
from benchmarks.algorithms_learning import PLANS, count_sampled, flags_of, spread, warm_model
from benchmarks.learning import cpu_seconds

UPDATES = ["--trainer.minibatches", "4", "--trainer.epochs", "2"]
NO_CLIP = ["--loss", "clip(low=1e9, high=1e9)"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one run came to."""

    rate: float
    clips: bool
    seed: int
    budget: int
    tokens: Sequence[int]
    """Sampled in each step."""
    rewards: Sequence[float]
    """The mean reward of each step's episodes."""
    clip_fractions: Sequence[float]
    """Of the tokens of all updates of each step, those that had no gradient."""
    after: float
    """Mean reward on held-out tasks."""
    cpu_s: float

    @property
    def over_budget(self) -> float:
        """The mean reward over the tokens of the budget."""
        return float(np.average(self.rewards, weights=self.tokens))


def train(rate: float, clips: bool, seed: int, budget: int, folder: Path) -> Trained:
    """Train until the budget is sampled."""
    plan, started = PLANS["keys"], cpu_seconds()
    flags = flags_of(plan, "grpo", seed, folder, warm_model(plan, seed, folder))
    flags[flags.index("--lr") + 1] = str(rate)
    flags += [*UPDATES, "--name", f"{rate}-{clips}-{seed}-{time.time_ns()}"]
    loaded = load_run_config(flags=flags if clips else [*flags, *NO_CLIP])
    tokens, metrics = list[int](), list[dict[str, float]]()
    with PlannedRun(loaded) as run:
        for step in run:
            tokens.append(count_sampled(step.collected))
            metrics.append(dict(step.metrics))
            if sum(tokens) >= budget:
                break
        after = run.evaluate().reward
    return Trained(
        rate=rate,
        clips=clips,
        seed=seed,
        budget=budget,
        tokens=tokens,
        rewards=[each["reward"] for each in metrics],
        clip_fractions=[each["loss/clip_fraction"] for each in metrics],
        after=after,
        cpu_s=round(cpu_seconds() - started, 1),
    )


def judge(runs: Sequence[Trained], rates: Sequence[float]) -> Iterator[str]:
    """Print a line for each cell; what misses a bar is given."""
    print("rate    clip  after (spread)   over the budget (spread)   clip_fraction   seeds")
    for rate in rates:
        cells = [[r for r in runs if (r.rate, r.clips) == (rate, clips)] for clips in (True, False)]
        for cell in cells:
            after, areas = [run.after for run in cell], [run.over_budget for run in cell]
            fractions = [mean(run.clip_fractions) for run in cell]
            print(
                f"{rate:<7g} {'yes' if cell[0].clips else 'no ':4}  {mean(after):.3f} "
                f"({spread(after):.3f})    {mean(areas):.3f} ({spread(areas):.3f})              "
                f"{min(fractions):.3f} to {max(fractions):.3f}   {len(cell)}"
            )
            if cell[0].clips and min(fractions) <= 0:
                yield f"a run at rate {rate:g} clipped nothing"
        leads = [a.over_budget - b.over_budget for a, b in zip(*cells, strict=True)]
        error = spread(leads) / len(leads) ** 0.5
        print(f"{rate:<7g} lead by the clip: {mean(leads):.3f}, standard error {error:.3f}")
        if rate == max(rates) and mean(leads) <= error:
            yield f"without clipping the runs at rate {rate:g} are not worse"


def main() -> int:
    """Run what the file lacks; 0 if every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("results", type=Path, nargs="?", default=Path("trust_region.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", default="3e-3")
    parser.add_argument("--budget", type=int, default=4000, help="tokens that a run samples")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: beside RESULTS")
    options = parser.parse_args()
    results: Path = options.results
    folder: Path = (options.runs or results.with_suffix(".runs")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["AGENTRL_CACHE"] = str(folder / "cache")
    rates = [float(rate) for rate in options.rates.split(",")]
    lines = results.read_bytes().splitlines() if results.exists() else []
    found = {
        (r.rate, r.clips, r.seed, r.budget): r for r in (Trained(**orjson.loads(x)) for x in lines)
    }
    runs = list[Trained]()
    for seed in range(options.seeds):
        for key in [
            (rate, clips, seed, options.budget) for rate in rates for clips in (True, False)
        ]:
            if key not in found:
                found[key] = train(*key, folder=folder)
                with results.open("ab") as file:
                    file.write(orjson.dumps(asdict(found[key]), option=orjson.OPT_APPEND_NEWLINE))
            runs.append(found[key])
    missed = [*judge(runs, rates)]
    print("\n".join(missed) or "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
