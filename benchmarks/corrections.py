"""Bias and variance of corrected policy gradients, on a model that is small enough to enumerate.

    python benchmarks/corrections.py [--plot corrections.svg]

The policy is a table of logits for each prefix of three tokens out of four, so all of its 64
sequences, their probabilities and their gradients are known. The engine is a perturbed copy of it.
For each correction the mean and the variance of the gradient of one sampled episode are sums over
what the engine samples, no sampling is involved. Exits 1 where a property fails that the formulas
promise.

Suffixes: S sequences, T their tokens, V vocabulary, P parameters.
"""

# pyright: reportUnknownMemberType=false
# matplotlib is typed in part only.

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from agentrl.rollout import make_batch
from agentrl.trainer.algorithms.corrections import BUILT_IN, Correction
from agentrl.trainer.algorithms.rollout_correction import (
    reject_k1,
    reject_k3,
    sequence_ratios,
    token_ratios,
)
from agentrl.types import Batch

VOCABULARY = 4
LENGTH = 3
SEEDS = range(5)
"""Of tables and rewards; the first is shown, the properties have to hold for each."""
STEP = 8.0
"""How far an update goes along the exact gradient: four of them make ratios of 0.2 to 3."""
TEMPERATURE = 0.7
Array = NDArray[np.float64]


def exact(values: Array) -> Any:
    """Float64 in a field of float32, so that no bias can be told from rounding."""
    return values


METHODS: Mapping[str, Correction] = {
    "none": lambda batch: batch,
    **BUILT_IN,
    "all sequence ratios": lambda batch: replace(batch, factors_N=exact(sequence_ratios(batch))),
    # Answers of three tokens are judged by looser bounds than long ones.
    "reject_k1": partial(reject_k1, low=0.8, high=1.25),
    "reject_k3": partial(reject_k3, most=0.2),
}
SINGLE: Mapping[str, Correction] = {
    "all ratios": lambda batch: replace(batch, factors_N=exact(token_ratios(batch)))
}
"""The same by tokens, for sequences of one."""
BOUNDED = {
    "tis": "decoupled",
    "mis": "decoupled",
    "icepop": "decoupled",
    "sequence_tis": "all sequence ratios",
    "sequence_mis": "all sequence ratios",
}
"""What has less variance than what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a correction makes of an engine; all but the shares in units of the exact gradient."""

    bias: float
    deviation: float
    """Of the gradient of one episode."""
    cosine: float
    """Between the mean gradient and the exact one."""
    rejected: float


class Model:
    """All sequences of a table of logits, and where in the table each token's are."""

    def __init__(self, length: int, seed: int) -> None:
        self.ids_ST = np.array(list(product(range(VOCABULARY), repeat=length)))
        number, place = 0, np.zeros_like(self.ids_ST)
        for t in range(length):  # prefixes are numbered by their length, then by their tokens
            powers = VOCABULARY ** np.arange(t)[::-1]
            place[:, t] = number + self.ids_ST[:, :t] @ powers
            number += VOCABULARY**t
        self.place_ST = place
        rng = np.random.default_rng(seed)
        self.first = rng.normal(0, 1, (number, VOCABULARY))
        self.rewards_S = rng.random(len(self.ids_ST))

    def logprobs(self, table: Array) -> Array:
        """[S, T]."""
        normalised: Array = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
        logprobs_ST: Array = normalised[self.place_ST, self.ids_ST]
        return logprobs_ST

    def gradient(self, table: Array, behavior_ST: Array, correct: Correction) -> Outcome:
        """What a correction makes of episodes that were sampled with other logprobs."""
        after = correct(self.batch(self.logprobs(table), behavior_ST))
        mask_ST = after.mask_N.reshape(len(self.ids_ST), -1)[:, 1:]
        factors_ST = mask_ST.astype(np.float64)
        if after.factors_N is not None:
            factors_ST = after.factors_N.reshape(len(mask_ST), -1)[:, 1:].astype(np.float64)
        chance_S = np.exp(behavior_ST.sum(axis=1))
        parts_SP = self._episode_gradients(table, factors_ST)
        mean_P = chance_S @ parts_SP
        exact_P = self.exact(table)
        size = float(np.linalg.norm(exact_P))
        variance = float(chance_S @ ((parts_SP - mean_P) ** 2).sum(axis=1))
        length = float(np.linalg.norm(mean_P))
        return Outcome(
            bias=float(np.linalg.norm(mean_P - exact_P)) / size,
            deviation=variance**0.5 / size,
            cosine=float(mean_P @ exact_P) / (length * size) if length else 0.0,
            rejected=float(chance_S @ (1 - mask_ST.mean(axis=1))),
        )

    def exact(self, table: Array) -> Array:
        """[P] The gradient of the expected reward."""
        logprobs_ST = self.logprobs(table)
        parts_SP = self._episode_gradients(table, np.ones_like(logprobs_ST))
        mean_P: Array = np.exp(logprobs_ST.sum(axis=1)) @ parts_SP
        return mean_P

    def batch(self, proximal_ST: Array, behavior_ST: Array) -> Batch:
        """Each sequence once, behind a prompt of one token."""
        number, length = self.ids_ST.shape
        mask_N = np.array(([False] + length * [True]) * number)

        def flatten(values_ST: Array) -> Any:
            return exact(np.pad(values_ST, ((0, 0), (1, 0))).reshape(-1))

        return replace(
            make_batch([], temperature=1.0),
            ids_N=np.zeros(len(mask_N), np.int32),
            mask_N=mask_N,
            logprobs_N=flatten(behavior_ST),
            proximal_N=flatten(proximal_ST),
            offsets_R1=np.arange(0, len(mask_N) + 1, length + 1),
            episode_R=np.arange(number, dtype=np.int32),
        )

    def _episode_gradients(self, table: Array, factors_ST: Array) -> Array:
        """[S, P] Advantage times the sum of each token's factor times grad log p, by episode."""
        chances = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
        baseline = np.exp(self.logprobs(table).sum(axis=1)) @ self.rewards_S
        found = np.zeros((len(self.ids_ST), *table.shape))
        for s, (ids, places) in enumerate(zip(self.ids_ST, self.place_ST, strict=True)):
            for token, place, factor in zip(ids, places, factors_ST[s], strict=True):
                found[s, place] -= factor * chances[place]
                found[s, place, token] += factor
        advantages_S = self.rewards_S - baseline
        weighed: Array = found * advantages_S[:, None, None]
        return weighed.reshape(len(found), -1)


def engines(model: Model) -> tuple[Array, dict[str, Array]]:
    """The trainer's table after some updates, and those of engines that differ from it."""
    tables = [model.first]
    for _ in range(4):
        step = model.exact(tables[-1]).reshape(model.first.shape)
        tables.append(tables[-1] + STEP * step)
    now = tables[-1]
    rounded = (now.astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)
    return now, {
        "bfloat16": rounded.astype(np.float64),
        "one version late": tables[-2],
        "four versions late": tables[0],
        f"temperature {TEMPERATURE}": now / TEMPERATURE,
    }


def measure(model: Model, methods: Mapping[str, Correction]) -> dict[str, dict[str, Outcome]]:
    """By engine and method."""
    now, others = engines(model)
    return {
        engine: {
            name: model.gradient(now, model.logprobs(other), method)
            for name, method in methods.items()
        }
        for engine, other in others.items()
    }


def faults(
    found: Mapping[str, Mapping[str, Outcome]], single: Mapping[str, Mapping[str, Outcome]]
) -> list[str]:
    """Which of the promised properties do not hold."""
    wrong: list[str] = []

    def expect(holds: bool, said: str) -> None:
        if not holds:
            wrong.append(said)

    for engine, by_name in found.items():
        unbiased = by_name["all sequence ratios"]
        expect(
            unbiased.bias < 1e-9, f"{engine}: sequence ratios have a bias of {unbiased.bias:.1e}"
        )
        alone = single[engine]["all ratios"].bias
        expect(alone < 1e-9, f"{engine}: token ratios have a bias of {alone:.1e} on one token")
        expect(
            engine != "four versions late" or by_name["decoupled"].bias < by_name["none"].bias,
            f"{engine}: token ratios do not lessen the bias",
        )
        for bounded, free in BOUNDED.items():
            expect(
                by_name[bounded].deviation <= by_name[free].deviation + 1e-6,
                f"{engine}: {bounded} has more variance than {free}",
            )
    for bounded, free in BOUNDED.items():
        least = min(o[bounded].deviation - o[free].deviation for o in found.values())
        expect(least < -1e-3, f"{bounded} has no less variance than {free} with any engine")
    late = [found[engine]["none"].bias for engine in ("one version late", "four versions late")]
    expect(late[0] < late[1], f"four versions late has no more bias than one: {late}")
    return wrong


def show(found: Mapping[str, Mapping[str, Outcome]]) -> None:
    """The table of docs/results.md: bias, deviation, cosine and what is rejected."""
    print(f"| correction | {' | '.join(found)} |")
    print("|---" * (len(found) + 1) + "|")
    for name in METHODS:
        cells: list[str] = []
        for outcome in (by_name[name] for by_name in found.values()):
            cell = f"{outcome.bias:.3f}, {outcome.deviation:.2f}, {outcome.cosine:.3f}"
            cells.append(f"{cell} ({outcome.rejected:.1%})" if outcome.rejected else cell)
        print(f"| {name} | {' | '.join(cells)} |")


def plot(found: Mapping[str, Mapping[str, Outcome]], path: Path) -> None:
    """Bars of bias and of deviation, a column for each engine."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "corrections"})
    figure = Figure(figsize=(3 * len(found), 6), layout="constrained")
    axes = figure.subplots(2, len(found), sharey=True)
    for column, (engine, by_name) in enumerate(found.items()):
        names = list(by_name)[::-1]
        axes[0, column].barh(names, [by_name[name].bias for name in names])
        axes[1, column].barh(names, [by_name[name].deviation for name in names], color="tab:orange")
        axes[0, column].set(title=engine, xlabel="bias / |gradient|")
        axes[1, column].set(xlabel="deviation / |gradient|")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    """Print the table; 1 if a property fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="write bias against deviation to this file")
    options = parser.parse_args()
    found = measure(Model(LENGTH, SEEDS[0]), METHODS)
    show(found)
    wrong = [
        f"seed {seed}: {fault}"
        for seed in SEEDS
        for fault in faults(measure(Model(LENGTH, seed), METHODS), measure(Model(1, seed), SINGLE))
    ]
    if options.plot:
        plot(found, options.plot)
    print("\n".join(wrong) or "every property holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
