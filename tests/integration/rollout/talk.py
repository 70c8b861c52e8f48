"""An environment that makes trouble, and an engine whose samples follow from seeds alone."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.aio import PauseWatch
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import ToolEnv
from agentrl.envs.agents import NullAgent
from agentrl.errors import EngineError
from agentrl.rollout import Codec, Collector, GroupJob, gather_groups
from agentrl.rollout.episode import MakeRunner
from agentrl.rollout.player import EnvMaker
from agentrl.tokens import seal
from agentrl.tools import tool
from agentrl.types import Completion, Episode, EpisodeSession, Sampling, StopReason, Task
from tests.integration.rollout.played import jobs, settings


class Talk(ToolEnv):
    """Two turns, whatever is said; the score and the answer tell where it was played."""

    system = "Talk."
    max_turns = 2

    @classmethod
    def make_task(cls, rng: object, split: str) -> Task:
        return Task(prompt="Say something.", data={"trouble": ""})

    def reply(self, text: str) -> str:
        match self.task.data["trouble"]:
            case "raise":
                raise KeyError("lost")
            case "die" if not Path(self.task.data["marks"]).exists():
                Path(self.task.data["marks"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case "stand" if not Path(self.task.data["marks"]).exists():
                Path(self.task.data["marks"]).touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                pass
        return f"{len(text)}, says {self.rng.integers(100)}."

    def score(self, answer: object) -> float:
        return len(answer) % 5 / 4 if isinstance(answer, str) else 0.0


class Odd(Talk):
    @tool
    def call_off(self) -> str:
        """Answer with what no other process can have."""
        return self.finish(threading.Lock())


class Dice(ScriptedEngine):
    """Samples ids that follow from seed and prompt alone."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(NullAgent(), codec.renderer(()), vocab_size=768)
        self._codec = codec
        self._stop = next(iter(codec.renderer(()).stop_ids))
        self.asked = 0
        self.is_asked_twice = asyncio.Event()
        self.fails_at = 0
        self.holds: asyncio.Event | None = None
        self.watch: PauseWatch | None = None
        self.says = ""
        self.num_done = 0

    @property
    def paused_s(self) -> float:
        return self.watch.total_s if self.watch is not None else 0.0

    def go_on(self) -> None:
        if self.watch is not None:
            self.watch.resume()
        assert self.holds is not None
        self.holds.set()

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.asked += 1
        if self.asked == 2:
            self.is_asked_twice.set()
        if self.asked == self.fails_at:
            raise EngineError("once")
        if self.holds is not None:
            if self.watch is not None and not self.holds.is_set():
                self.watch.pause()
            await self.holds.wait()
        self.num_done += 1
        dice = random.Random(f"{sampling.seed} {list(ids)}")
        if self.says:
            out = [*self._codec.tokenizer.encode(self.says, specials=True), self._stop]
            return seal(out, [-0.5] * len(out), [7] * len(out), StopReason.STOP)
        out = [*(dice.randrange(300, 500) for _ in range(dice.randrange(1, 9))), self._stop]
        return seal(out, [-0.5] * len(out), [7] * len(out), StopReason.STOP)


def maker(env: type[ToolEnv]) -> EnvMaker:
    return EnvMaker(
        name="env", env_class=env, config=env.Config(), verifier=None, max_turns=None, context=None
    )


async def collect(
    codec: Codec,
    engine: Dice,
    make_runner: MakeRunner | None = None,
    played: Sequence[GroupJob] | None = None,
    **changes: Any,
) -> tuple[list[Episode], list[Episode]]:
    """The scored episodes, and the attempts without a score."""
    chosen = settings(**changes)
    if make_runner is not None:
        chosen = replace(chosen, make_runner=make_runner)
    collector = Collector(engine=engine, codec=codec, settings=chosen)
    found = await gather_groups(
        collector.collect(jobs(6, Talk) if played is None else played, group_size=2)
    )
    return found.episodes, found.invalid


def troubled(trouble: str, marks: Path | None = None, num: int = 6) -> list[GroupJob]:
    """The last of the jobs has an environment that makes trouble."""
    made = jobs(num, Talk)
    data = {"trouble": trouble, "marks": str(marks)}
    return [*made[:-1], replace(made[-1], task=replace(made[-1].task, data=data))]
