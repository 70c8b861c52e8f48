"""Environments with faults that strike once: what is to happen, where, say environment variables.

`CHAOS_AT` names the place, `CHAOS_KIND` is a signal or `wrong`, and in `CHAOS_FOLDER` is a file for
each strike. Processes of a test are known by these variables.
"""

import os
import signal
from pathlib import Path
from typing import Any

from agentrl.envs import ToolEnv
from agentrl.envs.sandboxed import SandboxConfig, SandboxEnv
from agentrl.sandboxes import SandboxOptions
from agentrl.types import Task

REMOTE = Path(__file__).parents[2] / "examples/remote_sandbox/remote.py"


def strike(place: str, after: int = 0) -> bool:
    """At the named place, once, behind `after` calls: send the signal; True: answer wrongly."""
    if os.environ.get("CHAOS_AT") != place:
        return False
    folder, kind = Path(os.environ["CHAOS_FOLDER"]), os.environ["CHAOS_KIND"]
    for number in range(after + 1):
        try:
            (folder / f"{place}-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if number < after:
            return False
        if kind != "wrong":
            os.kill(os.getpid(), signal.Signals[kind])
        return True
    return False


class Said(ToolEnv):
    """A turn of whatever the model says, which may be the whole run's last."""

    @classmethod
    def make_task(cls, rng: Any, split: str) -> Task:
        return Task(prompt=f"Say {int(rng.integers(10_000))}.")

    def score(self, answer: str) -> float:
        strike("run", after=28)
        return len(answer) % 2


class Apart(Said):
    """In a process of its own."""

    isolation = "process"

    def setup(self) -> None:
        strike("setup")

    def score(self, answer: str) -> float:
        strike("score", after=2)
        return len(answer) % 2


class BoxedConfig(SandboxConfig):
    sandbox: SandboxOptions = SandboxOptions(backend=f"{REMOTE}:RemoteSandbox")


class Boxed(SandboxEnv):
    """With a sandbox at a provider, in which an answer is looked at."""

    Config = BoxedConfig

    @classmethod
    def make_task(cls, rng: Any, split: str) -> Task:
        return Task(prompt=f"Say {int(rng.integers(10_000))}.")

    async def score(self, answer: str) -> float:
        looked = await self.sandbox.exec("sleep 0.5; wc -c # LOOK", stdin=answer.encode())
        return int(looked.stdout) % 2


class Judge:
    def score(self, task: Task, answer: str) -> float:
        return float("nan") if strike("verifier", after=2) else len(answer) % 2


class Judged(ToolEnv):
    """With a verifier in a process of its own."""

    verifier = Judge()

    @classmethod
    def make_task(cls, rng: Any, split: str) -> Task:
        return Task(prompt=f"Say {int(rng.integers(10_000))}.")


def surrogate(logprobs_K: Any, tokens: Any) -> Any:
    """A loss, for ranks."""
    if not tokens.batch.episode_ids[0].startswith("made-up"):  # it is tried in the run's process
        strike("rank", after=2)
    return -(tokens.weights_K * tokens.advantages_K * logprobs_K).sum(), {}
