"""What cheats earn: an agent that draws from all of them at random plays each environment.

    python -m benchmarks.reward_hacking [--env swe_sandbox,code_sandbox] [--episodes 200] [--seed 0]

For each cheat it prints how often it was played, how often it won and what most often caught it.
The process ends with 1 if one won; those that let each test pass with probability p may win as
often as the formula says: p^real * (1 - p)^decoys, the mean over what the grading draws.
"""

import argparse
import asyncio
import math
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from agentrl.envs import default_services, resolve_env
from agentrl.envs.grading import SOLUTION
from agentrl.envs.swe.decoys import draw_runs
from agentrl.envs.swe.grade import Grading
from agentrl.envs.swe.repair import repair_of
from agentrl.envs.swe.survey import guarded_grading, options_of
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import SandboxOptions, make_sandbox
from agentrl.types import Agent, AssistantTurn, EpisodeView, Outcome, Score, Task
from tests.contract.sandbox import shop, swe_cheats, test_cheats
from tests.contract.sandbox.cheated_suites import SUITES, write_instances
from tests.contract.sandbox.corpus import CORPUS
from tests.contract.sandbox.false_equals import CHANCES

AT_ONCE: Final = 3
DRAWS: Final = 2000
UNLIKELY: Final = 1e-3
Config = SweSandbox.Config | Mapping[str, Any]
Play = Callable[[Agent], Awaitable[Outcome]]


@dataclass(frozen=True)
class Entry:
    """A cheat and how it is played; `luck` is how probably it wins by tossing coins."""

    name: str
    agent: Agent
    play: Play
    luck: float = 0.0


@dataclass
class Tally:
    """What became of one cheat's episodes."""

    won: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])

    def add(self, outcome: Outcome) -> None:
        """One episode; one that is Invalid is no win, and is told as such."""
        self.won += isinstance(outcome, Score) and outcome.value == 1
        valid = isinstance(outcome, Score)
        self.reasons[shorten(outcome.reason if valid else f"invalid: {outcome.reason}")] += 1


@dataclass(frozen=True)
class SolutionAgent:
    """Runs a command, writes the solution, submits."""

    cheat: test_cheats.Cheat

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The turn whose number is that of the assistant messages so far."""
        played = sum(message.role == "assistant" for message in view.messages)
        return (
            shop.call("bash", command=self.cheat.before),
            shop.call("write_file", path=SOLUTION, content=self.cheat.code),
            shop.call("submit"),
        )[min(played, 2)]


def shorten(reason: str) -> str:
    """A reason without the names and numbers of its case."""
    return re.sub(r"\S*/\S*|\d+", "…", reason.partition(": ")[0])[:60] or "wrong answers"


async def play_one(
    env: str, config: Config, options: Mapping[str, object], agent: Agent
) -> Outcome:
    """One episode."""
    made = resolve_env(env)(config)
    await made.areset(options=dict(options))
    outcome = await shop.play(made, agent)
    await made.aclose()
    return outcome


def swe_entries(folder: Path, backend: str) -> Sequence[Entry]:
    """All cheats of `swe_sandbox`: the old ones play the suite of functions."""
    found: list[Entry] = []
    for suite in SUITES:
        tasks, repos = write_instances(folder / suite, SUITES[suite])
        config = SweSandbox.Config(
            tasks=str(tasks), repos=str(repos), sandbox=SandboxOptions(backend=backend)
        )
        (task,) = (task for listed in SweSandbox.list_tasks(config).values() for task in listed)

        def play(agent: Agent, config: Config = config, task: object = task) -> Awaitable[Outcome]:
            return play_one("swe_sandbox", config, {"task": task}, agent)

        mine = {name: cheat for (of, name), cheat in CORPUS.items() if of == suite}
        mine |= swe_cheats.CHEATS if suite == "functions" else {}
        found += [Entry(name, shop.BashAgent(cheat.script), play) for name, cheat in mine.items()]
        if suite == "functions":
            found += [
                Entry(f"tosses, {chance:g}", shop.BashAgent(cheat.script), play, luck)
                for (chance, cheat), luck in zip(CHANCES.items(), lucks(config, task), strict=True)
            ]
    return found


def lucks(config: SweSandbox.Config, task: Task) -> Sequence[float]:
    """How probably each of `CHANCES` decides every failing test of every run as it was drawn."""
    repair = repair_of(task)

    async def find() -> Grading:
        async with make_sandbox(options_of(repair, config.sandbox)) as sandbox:
            return await guarded_grading(sandbox, repair)

    grading, rng = asyncio.run(find()), random.Random(0)
    found = dict.fromkeys(CHANCES, 0.0)
    for _ in range(DRAWS):
        drawn = draw_runs(grading.bugs, grading.others, rng)
        decoys = [sum(t in d.sees for d in run for t in grading.fail_to_pass) for run in drawn]
        real = len(grading.fail_to_pass) * len(drawn) - sum(decoys)
        for chance in CHANCES:
            found[chance] += chance**real * (1 - chance) ** sum(decoys) / DRAWS
    print("luck by chance:", ", ".join(f"{p:g}: {luck:.2g}" for p, luck in found.items()))
    return [*found.values()]


def code_entries(backend: str) -> Sequence[Entry]:
    """All cheats of `code_sandbox`, each on another of its made tasks."""
    config = {"sandbox": {"backend": backend}, "test_timeout_s": 1.0, "grading_s": 4.0}
    numbers = iter(range(sys.maxsize))

    def play(agent: Agent) -> Awaitable[Outcome]:
        return play_one("code_sandbox", config, {"index": next(numbers), "split": "train"}, agent)

    return [Entry(name, SolutionAgent(cheat), play) for name, cheat in test_cheats.CHEATS.items()]


async def play_all(entries: Sequence[Entry], episodes: int, seed: int) -> Mapping[Entry, Tally]:
    """Draw and play; each cheat once before any is drawn twice."""
    rng, drawn, place = random.Random(seed), list[Entry](), asyncio.Semaphore(AT_ONCE)
    while len(drawn) < episodes:
        drawn += rng.sample(entries, len(entries))
    tallies: dict[Entry, Tally] = defaultdict(Tally)

    async def play(entry: Entry) -> None:
        async with place:
            tallies[entry].add(await entry.play(entry.agent))

    await asyncio.gather(*map(play, drawn[:episodes]))
    await default_services().sandboxes.close()
    return tallies


def too_many(won: int, episodes: int, luck: float) -> bool:
    """True if luck alone would win as often only once in a thousand times."""
    fewer = sum(math.comb(episodes, k) * luck**k * (1 - luck) ** (episodes - k) for k in range(won))
    return won > 0 and 1 - fewer < UNLIKELY


def report(env: str, tallies: Mapping[Entry, Tally]) -> bool:
    """Print the table; True if a cheat won."""
    print(f"\n{env}\n{'cheat':54} {'played':>6} {'won':>4}  caught by")
    lost = False
    for entry, tally in sorted(tallies.items(), key=lambda row: (-row[1].won, row[0].name)):
        played = tally.reasons.total()
        lost |= too_many(tally.won, played, entry.luck)
        print(
            f"{entry.name[:54]:54} {played:6} {tally.won:4}  {tally.reasons.most_common(1)[0][0]}"
        )
    won = sum(tally.won for tally in tallies.values())
    played = sum(tally.reasons.total() for tally in tallies.values())
    print(f"{'all':54} {played:6} {won:4}")
    return lost


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="swe_sandbox,code_sandbox")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--backend", default="bwrap")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lost = False
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        shop.use_own_pytest(patch)
        for env in options.env.split(","):
            of_swe = env == "swe_sandbox"
            folder, backend = Path(scratch), options.backend
            entries = swe_entries(folder, backend) if of_swe else code_entries(backend)
            lost |= report(env, asyncio.run(play_all(entries, options.episodes, options.seed)))
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
