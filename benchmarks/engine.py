"""Tokens per second of the local engine beside transformers' `generate`, in one run.

    python benchmarks/engine.py [--quick] [--model smollm2-135m] [--threads 2]

Both sides get the model in `--dtype`; the engine computes in what its configuration's "auto" makes
of that, which on a CPU without bfloat16 products is float32, or in `--engine-dtype`. On a shared
machine, `--threads 1 --clock cpu` compares CPU seconds.

Three comparisons, each repeated in turns; medians and spread are printed. Equal lengths: a batch of
prompts, each with the same number of new tokens. Ragged: 64 episodes of 1 to 4 turns of 8 to 96
tokens over 16 slots, prompts of 226 tokens shared in groups of 8, results of 25 tokens; `generate`
takes 16 ready turns at a time, left-padded. Floor: the matrix products of one decoding step alone.
Exits with 1 where a ratio is below its bar.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import argparse
import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from statistics import median
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.quiet import quiet
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.types import EpisodeSession, Sampling

BARS = {1: 1.0, 16: 1.5, 64: 1.5}
RAGGED_BAR = 2.5
PROMPT, RESULT, GROUP, SLOTS = 226, 25, 8, 16


@dataclass(frozen=True)
class Result:
    """Tokens per second of both sides, one figure for each repetition."""

    name: str
    bar: float
    theirs: list[float]
    ours: list[float]
    floor: float = 0.0

    @property
    def ratio(self) -> float:
        """Median of the ratios of neighbouring repetitions."""
        return median(b / a for a, b in zip(self.theirs, self.ours, strict=True))

    def line(self) -> str:
        """One row of the table."""
        share = f"{median(self.ours) / self.floor:5.0%}" if self.floor else "    -"
        floor = f"{self.floor:7.0f}" if self.floor else "      -"
        verdict = "ok" if self.ratio >= self.bar else "BELOW"
        return (
            f"{self.name:<10} {_spread(self.theirs)} {_spread(self.ours)} {floor} {share}"
            f"   {self.ratio:5.2f}x   {self.bar:.1f}x {verdict}"
        )


@dataclass(frozen=True)
class Sides:
    """What is compared, and how."""

    model: PreTrainedModel
    engine: LocalEngine
    runner: asyncio.Runner
    clock: Callable[[], float]
    repeats: int

    def compare(
        self,
        tokens: int,
        theirs: Callable[[], object],
        ours: Callable[[], Coroutine[None, None, None]],
    ) -> tuple[list[float], list[float]]:
        """Tokens/s of both, one repetition after the other, after one that does not count."""
        rates: tuple[list[float], list[float]] = ([], [])
        runs: list[Callable[[], object]] = [theirs, lambda: self.runner.run(ours())]
        for repeat in range(self.repeats + 1):
            for side, run in zip(rates, runs, strict=True):
                start = self.clock()
                run()
                if repeat:
                    side.append(tokens / (self.clock() - start))
        return rates

    def floor(self, batch: int) -> float:
        """Tokens/s if a decoding step were its matrix products, in the engine's dtype, alone."""
        layers = [module for module in self.model.modules() if isinstance(module, nn.Linear)]
        pairs = [
            (torch.randn(batch, layer.in_features).to(self.engine.dtype), layer.weight)
            for layer in layers
        ]
        pairs = [(value, weight.detach().to(self.engine.dtype)) for value, weight in pairs]
        seconds: list[float] = []
        for _ in range(6):
            start = self.clock()
            for value, weight in pairs:
                nn.functional.linear(value, weight)
            seconds.append(self.clock() - start)
        return batch / median(seconds[1:])


@dataclass
class Episode:
    """One episode of the ragged workload: what it was, and is, given."""

    ids: list[int]
    turns: list[int]
    results: list[list[int]]


def main() -> int:
    """Run the comparisons; 1 if one is below its bar."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    with quiet():
        model = load_model(resolve_model(args.model), args.dtype)
    engine = LocalEngine(model, EngineConfig(slots=max(BARS), dtype=args.engine_dtype))
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    new, num = (32, 16) if args.quick else (64, 64)
    print(
        f"{args.model}, generate in {args.dtype}, agentrl in {engine.dtype}, {args.threads} "
        f"threads; tokens per {args.clock} second: median (lowest-highest)"
    )
    print(f"{'':<10} {'generate':<19} {'agentrl':<19} {'floor':>7} {'share':>5}    ratio   bar")
    with asyncio.Runner() as runner:
        sides = Sides(model, engine, runner, clock, args.repeats)
        results = [_equal(sides, batch, new) for batch in BARS]
        results.append(_ragged(sides, num))
        runner.run(engine.aclose())
    return int(any(result.ratio < result.bar for result in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--model", default="smollm2-135m", help="name or folder of the model")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of both sides")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--engine-dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of each comparison")
    return parser.parse_args()


def _equal(sides: Sides, batch: int, new: int) -> Result:
    """A batch of different prompts, `new` tokens for each."""
    rng = random.Random(batch)
    prompts = [_ids(sides.model, rng, 16) for _ in range(batch)]
    sessions = [EpisodeSession(f"{batch}-{index}") for index in range(batch)]

    async def ours() -> None:
        jobs = zip(prompts, sessions, strict=True)
        await asyncio.gather(*(_turn(sides.engine, prompt, new, s) for prompt, s in jobs))
        # Nothing is kept for the next repetition, as `generate` keeps nothing.
        await asyncio.gather(*map(sides.engine.end_session, sessions))

    rates = sides.compare(batch * new, lambda: _generate(sides.model, prompts, new), ours)
    return _print(Result(f"batch {batch}", BARS[batch], *rates, floor=sides.floor(batch)))


def _ragged(sides: Sides, num: int) -> Result:
    """Whole episodes: the prompt, then turns and the results of tools."""
    episodes = _episodes(sides.model, num)
    tokens = sum(sum(episode.turns) for episode in episodes)

    async def ours() -> None:
        free = asyncio.Semaphore(SLOTS)
        jobs = [_play(sides.engine, free, i, episode) for i, episode in enumerate(episodes)]
        await asyncio.gather(*jobs)

    rates = sides.compare(tokens, lambda: _generate_turns(sides.model, episodes), ours)
    return _print(Result("ragged", RAGGED_BAR, *rates, floor=sides.floor(SLOTS)))


async def _play(engine: LocalEngine, free: asyncio.Semaphore, index: int, episode: Episode) -> None:
    async with free:
        ids, session = list(episode.ids), EpisodeSession(f"episode {index}")
        for num, result in zip(episode.turns, episode.results, strict=True):
            ids += [*await _turn(engine, ids, num, session), *result]
        await engine.end_session(session)


async def _turn(
    engine: LocalEngine, ids: list[int], num: int, session: EpisodeSession
) -> list[int]:
    completion = await engine.generate(ids, Sampling(max_new_tokens=num), session)
    sampled: list[int] = completion.ids_T.tolist()
    return sampled


def _generate_turns(model: PreTrainedModel, episodes: list[Episode]) -> None:
    """Per-turn `generate`: always the next 16 turns that are ready, each with its whole history."""
    ready = deque((list(episode.ids), episode, 0) for episode in episodes)
    while ready:
        batch = [ready.popleft() for _ in range(min(SLOTS, len(ready)))]
        longest = max(episode.turns[turn] for _, episode, turn in batch)
        sampled = _generate(model, [ids for ids, _, _ in batch], longest)
        for (ids, episode, turn), new in zip(batch, sampled, strict=True):
            if turn + 1 < len(episode.turns):
                ids += new[: episode.turns[turn]] + episode.results[turn]
                ready.append((ids, episode, turn + 1))


@torch.inference_mode()
def _generate(model: PreTrainedModel, prompts: list[list[int]], new: int) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    output: torch.Tensor = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=mask,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
    )
    return cast("list[list[int]]", output[:, longest:].tolist())


def _episodes(model: PreTrainedModel, num: int) -> list[Episode]:
    rng = random.Random(0)
    prompts = [_ids(model, rng, PROMPT) for _ in range(num // GROUP)]
    episodes: list[Episode] = []
    for index in range(num):
        turns = [rng.randint(8, 96) for _ in range(rng.randint(1, 4))]
        results = [_ids(model, rng, RESULT) for _ in turns]
        episodes.append(Episode(prompts[index // GROUP], turns, results))
    return episodes


def _ids(model: PreTrainedModel, rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(3, model.config.vocab_size) for _ in range(num)]


def _spread(rates: list[float]) -> str:
    return f"{median(rates):6.0f} ({min(rates):.0f}-{max(rates):.0f})".ljust(19)


def _print(result: Result) -> Result:
    print(result.line(), flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
