"""CPU time of a turn of the agent loop, without a model, beside other frameworks' loops.

    python benchmarks/rollout.py [--repeats 5] [--episodes 64,256,1024] [--peers FOLDER]

Episodes of four turns: three calls of a calculator and an answer, canned completions of 48 tokens,
on SmolLM2's tokenizer with the chat template of Qwen 2.5. What is counted is everything that a
rollout does beside the model: prompts, parsing, tool calls, results, the record with its digests,
and with an endpoint also the client. "scripted" has no transport; "endpoint" is a stand-in for
SGLang's `/generate` in a process of its own, whose time is not counted.

Then one request of 1,024 tokens alone; what a sync tool (a thread for each episode) and an isolated
one (worker processes, counted) add; and the wall time of episodes whose tool waits 50 ms.

`--peers FOLDER` reruns the other loops: FOLDER holds `run_all.sh`, PEERS names their environments.
Without it figures that were recorded are shown.

CPU time of the process, medians of some repetitions after one that does not count, torch with one
thread. Exits with 1 where a figure is above its bar.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.engine import Engine
from agentrl.engine.local.process import prepare_process
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.servers.client import new_rid
from agentrl.engine.sglang.client import GenerateClient
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.envs import EnvServices, ToolEnv
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
)
from agentrl.tokens import Tokenizer, verify_segment
from agentrl.tools import tool
from agentrl.tools.arithmetic import evaluate
from agentrl.types import AssistantTurn, Episode, EpisodeView, Sampling, Task
from agentrl.verifiers import ExactNumber
from tests.integration.templates.corpus import smollm2, sources

TURNS, TURN_TOKENS, GROUP = 4, 48, 8
CONTEXT = 8192
BARS_MS = {"scripted": 0.18, "endpoint": 0.6, "client": 0.4}
TOOL_S = 0.05
PROMPT_TOKENS = 1024
RECORDED = {
    "openrlhf": 0.097,
    "skyrl": 0.185,
    "areal": 0.448,
    "trl": 0.487,
    "verl": 1.447,
    "verl+ray": 4.59,
    "verifiers0.1.14": 9.4,
}
"""The same at 256 episodes on 2 cores without a GPU, 2026-11-27; verl+ray with its actors."""


class Async(ToolEnv):
    """A calculator that is awaited."""

    system = "Use the calculator."
    max_turns = TURNS
    verifier = ExactNumber()
    tasks = (Task(prompt="What is 2 + 3?", answer=5),)

    @tool
    async def calculator(self, expression: str) -> str:
        """Evaluates an arithmetic expression.

        Args:
            expression: The expression, for example "2+3*4".
        """
        return evaluate(expression)


class Slow(Async):
    """One that takes its time."""

    @tool
    async def calculator(self, expression: str) -> str:
        """Evaluates an arithmetic expression.

        Args:
            expression: The expression, for example "2+3*4".
        """
        await asyncio.sleep(TOOL_S)
        return evaluate(expression)


class Sync(Async):
    """One that runs on the episode's thread."""

    @tool
    def calculator(self, expression: str) -> str:  # type: ignore[override]
        """Evaluates an arithmetic expression.

        Args:
            expression: The expression, for example "2+3*4".
        """
        return evaluate(expression)


class Isolated(Async):
    """One that runs in a process of its own."""

    @tool(isolated=True)
    def calculator(self, expression: str) -> str:  # type: ignore[override]
        """Evaluates an arithmetic expression.

        Args:
            expression: The expression, for example "2+3*4".
        """
        return evaluate(expression)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one repetition took, in seconds."""

    cpu: float
    wall: float


class Canned:
    """Completions of 48 tokens: random ones, then a call or an answer, then the stop token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        stop = tokenizer.controls["<|im_end|>"]
        rng = random.Random(0)
        # So many that hardly two observations are the same: no cache knows the next one.
        pairs = [(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(4096)]
        call = '{"name": "calculator", "arguments": {"expression": "%d+%d"}}'
        call = f"<tool_call>\n{call}\n</tool_call>"

        def padded(text: str) -> list[int]:
            ids = [*tokenizer.encode(text, specials=False), stop]
            filler = [rng.randint(1000, 40000) for _ in range(TURN_TOKENS - len(ids))]
            return filler + ids

        self.stop = stop
        self.calls = [padded(call % pair) for pair in pairs]
        self.answers = [padded(f"The answer is {a % 10}.") for a, _ in pairs[:64]]

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The scripted agent: the name of what it says next."""
        turn = sum(message.role == "assistant" for message in view.messages)
        return AssistantTurn(text="answer" if turn == TURNS - 1 else "call")

    def assistant(self, turn: AssistantTurn) -> list[int]:
        """The ids of that."""
        return random.choice(self.answers if turn.text == "answer" else self.calls)

    def to_json(self) -> str:
        """As the endpoint reads it."""
        lists = {"calls": self.calls, "answers": self.answers}
        return json.dumps({"stop_id": self.stop, "turns": TURNS, **lists})


class Bench:
    """The parts that all measurements share."""

    def __init__(
        self, repeats: int, endpoint: tuple[str, int], canned: Canned, codec: Codec
    ) -> None:
        self.repeats = repeats
        self.url, self.endpoint_pid = endpoint
        self.canned, self.codec = canned, codec
        self.services = EnvServices()
        self.missed = False

    def scripted(self) -> Engine:
        """No transport, no latency."""
        return ScriptedEngine(self.canned.act, self.canned, context_length=CONTEXT)

    def endpoint(self) -> Engine:
        """The client and the stand-in."""
        vocab = self.codec.tokenizer.vocab_size
        engine = SglangEngine([self.url], vocab_size=vocab, context_length=CONTEXT)
        for slot in engine.slots:
            slot.serve()
        return engine

    def rollout(self, make: Callable[[], Engine], env: type[ToolEnv], num: int) -> list[Cost]:
        """Costs of collecting `num` episodes at once."""
        steps = range(self.repeats + 1)
        jobs = [[self._job(env, step, i) for i in range(-(-num // GROUP))] for step in steps]
        limits = EpisodeLimits(
            max_new_tokens=512, max_context_tokens=CONTEXT, wall_s=600.0, setup_s=60.0
        )
        settings = CollectSettings(
            limits=limits, temperature=1.0, concurrency=num, attempts=1, max_invalid_share=0.0
        )

        async def run() -> list[Cost]:
            engine = make()
            collector = Collector(engine=engine, codec=self.codec, settings=settings)
            costs: list[Cost] = []
            for step in steps:
                with self.measured(costs):
                    groups = collector.collect(jobs[step], group_size=min(GROUP, num))
                    got = await gather_groups(groups)
                check(got.episodes, num)
            await engine.aclose()
            return costs[1:]

        return asyncio.run(run())

    def requests(self, concurrent: int, num: int = 512) -> list[Cost]:
        """Costs of requests of 1,024 tokens, without the loop."""
        vocab = self.codec.tokenizer.vocab_size
        rng = random.Random(1)
        prompt = [rng.randint(1000, 40000) for _ in range(PROMPT_TOKENS)]
        sampling = Sampling(max_new_tokens=512, stop_ids=frozenset({self.canned.stop}))

        async def run() -> list[Cost]:
            client = GenerateClient(self.url, {}, vocab_size=vocab)
            costs: list[Cost] = []

            async def one(share: int) -> None:
                for _ in range(share):
                    await client.generate(prompt, sampling, new_rid())

            for _ in range(self.repeats + 1):
                with self.measured(costs):
                    await asyncio.gather(*(one(num // concurrent) for _ in range(concurrent)))
            await client.aclose()
            return costs[1:]

        return asyncio.run(run())

    @contextmanager
    def measured(self, costs: list[Cost]) -> Generator[None]:
        """Append what the block takes, worker processes included."""
        wall, cpu = time.perf_counter(), self._cpu_s()
        yield
        costs.append(Cost(self._cpu_s() - cpu, time.perf_counter() - wall))

    def show(
        self, name: str, num: int, costs: Sequence[Cost], per: int, bar: float | None
    ) -> float:
        """Print a line; returns the median of the CPU time of one turn or request, in ms."""
        values = sorted(1e3 * cost.cpu / per for cost in costs)
        walls = median(cost.wall for cost in costs)
        verdict = ""
        if bar is not None:
            ok = median(values) <= bar
            self.missed |= not ok
            verdict = f"{bar:.2f} {'ok' if ok else 'ABOVE'}"
        print(
            f"{name:<22} {num:>5} {median(values):8.3f} ({values[0]:.3f}-{values[-1]:.3f})"
            f"  {walls:7.3f} s  {verdict}",
            flush=True,
        )
        return median(values)

    def _cpu_s(self) -> float:
        return time.process_time() + workers_s(os.getpid(), but=self.endpoint_pid)

    def _job(self, env: type[ToolEnv], step: int, place: int) -> GroupJob:
        tokenizer, services = self.codec.tokenizer, self.services
        return GroupJob(
            key=EpisodeKey.first(run=0, step=step, place=place),
            env="calculator",
            make_env=lambda: env(tokenizer=tokenizer, services=services),
            task=Task(prompt=f"What is {place} + {7 * place}?", answer=8 * place),
            split="train",
        )


def main() -> int:
    """Measure; 1 if a figure is above its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--episodes", default="64,256,1024")
    parser.add_argument("--peers", type=Path, help="folder with the run_all.sh of the other loops")
    args = parser.parse_args()
    prepare_process(threads=1, deterministic=False, seed=0)  # as for a run
    tokenizer = Tokenizer(
        smollm2(), sources()["qwen2_5"], special_tokens={"eos_token": "<|im_end|>"}
    )
    canned = Canned(tokenizer)
    numbers = [int(number) for number in args.episodes.split(",")]
    with served(canned) as endpoint:
        bench = Bench(args.repeats, endpoint, canned, Codec(tokenizer))
        print("CPU ms a turn: median (lowest-highest); wall time of a repetition; bar")
        ours = loops(bench, numbers)
        bench.services.close()
    latency(bench)
    peers(args.peers, ours)
    return int(bench.missed)


def loops(bench: Bench, numbers: Sequence[int]) -> dict[str, float]:
    """The CPU time of turns and requests; returns ours at 256 episodes, or the nearest number."""
    found: dict[tuple[str, int], float] = {}
    for name, make in (("scripted", bench.scripted), ("endpoint", bench.endpoint)):
        for num in numbers:
            costs = bench.rollout(make, Async, num)
            found[name, num] = bench.show(name, num, costs, num * TURNS, BARS_MS[name])
    for concurrent in (256, 64, 16, 1):
        bench.show("client", concurrent, bench.requests(concurrent), 512, BARS_MS["client"])
    for name, env in (("sync tool", Sync), ("isolated tool", Isolated)):
        for num in (numbers[0], numbers[-1]):
            more = bench.show(name, num, bench.rollout(bench.scripted, env, num), num * TURNS, None)
            print(f"{'':>28} {more - found['scripted', num]:+8.3f} against the async tool")
    nearest = min(numbers, key=lambda num: abs(num - 256))
    return {name: found[name, nearest] for name in ("scripted", "endpoint")}


def latency(bench: Bench) -> None:
    """The wall time of episodes whose three calls take 50 ms each."""
    ideal = TOOL_S * (TURNS - 1)
    for num in (16, 256):
        costs = bench.rollout(bench.scripted, Slow, num)
        wall, cpu = median(c.wall for c in costs), median(c.cpu for c in costs)
        bar = 1.3 * ideal if num == 16 else ideal + 1.5 * cpu
        ok = wall <= bar
        bench.missed |= not ok
        print(
            f"50 ms tool, 3 calls: {num} episodes in {wall:.3f} s (ideal {ideal:.2f} s, "
            f"CPU {cpu:.3f} s), bar {bar:.3f} {'ok' if ok else 'ABOVE'}"
        )


def peers(folder: Path | None, ours: dict[str, float]) -> None:
    """The table of all loops."""
    figures, source = RECORDED, "recorded 2026-11-27, not rerun"
    if folder is not None:
        figures, source = rerun(folder), "rerun"
    print("CPU ms a turn at 256 episodes; the loops do not all do the same work")
    for name, figure in sorted(figures.items(), key=lambda pair: pair[1]):
        print(f"  {name:<18} {figure:8.3f}  {source}")
    for name, figure in ours.items():
        print(f"  {'agentrl, ' + name:<18} {figure:8.3f}  measured")


def rerun(folder: Path) -> dict[str, float]:
    """Run the other loops whose environments are there."""
    done = subprocess.run(
        ["bash", str(folder / "run_all.sh"), "256"], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, float] = {}
    for line in done.stdout.splitlines():
        name, _, rest = line.partition(" ")
        said: dict[str, float] = json.loads(rest) if rest.startswith("{") else {}
        figure = said.get("cpu_ms_per_traj_turn", said.get("loop_ms_per_traj_turn"))
        if figure is None:
            print(f"  {line}")
        else:
            figures[name] = figure
    return figures


def workers_s(pid: int, but: int) -> float:
    """CPU seconds of the processes that `pid` has started, and of theirs, except of one."""
    total = 0.0
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listed.read_text().split():
            if int(child) != but:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                total += workers_s(int(child), but)
    return total


def check(episodes: Sequence[Episode], num: int) -> None:
    """Every episode has its turns and calls, and a record that verifies."""
    assert len(episodes) == num
    for episode in episodes:
        calls = [turn.num_calls for turn in episode.turns]
        errors = [error for turn in episode.turns for error in turn.call_errors]
        assert calls == [1] * (TURNS - 1) + [0], (episode.id, calls)
        assert not errors, (episode.id, errors)
        trained = sum(verify_segment(segment, episode.id) for segment in episode.segments)
        assert trained == TURNS * TURN_TOKENS


@contextmanager
def served(canned: Canned) -> Generator[tuple[str, int]]:
    """The URL and the process of the stand-in."""
    script = Path(__file__).with_name("fake_sglang.py")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(canned.to_json())
        process.stdin.close()
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
