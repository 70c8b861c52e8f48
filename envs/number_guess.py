"""`number_guess`: find a number in a range; a wrong guess in the middle halves the range."""

import re

import numpy as np
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.tasks import require_split, split_of
from agentrl.envs.toolenv import ToolEnv
from agentrl.types import Agent, AssistantTurn, EpisodeView, Task
from agentrl.verifiers import ExactNumber
from agentrl.verifiers.compare import parse_number

_RANGE = re.compile(r"between (\d+) and (\d+)\.")


class NumberGuess(ToolEnv):
    """A game over many turns without tools; the answer is the last guess.

    A range and its secret number together belong to one split.
    """

    class Config(BaseConfig):
        """Parameters of the tasks."""

        min_low: int = Field(default=100, ge=0, description="smallest start of a range")
        max_low: int = Field(default=900, ge=0, description="largest start of a range")
        width: int = Field(default=32, ge=2, description="how many numbers a range has")

    config: Config

    system = "Guess the number. Reply with one number only."
    max_turns = 8
    verifier = ExactNumber()

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """A range and a secret number in it that belong to the split."""
        require_split(split)
        low, secret = _draw_low_and_secret(rng, config)
        while split_of("number_guess", low, secret) != split:
            low, secret = _draw_low_and_secret(rng, config)
        high = low + config.width - 1
        return Task(
            prompt=f"My number is between {low} and {high}.",
            answer=secret,
            data={"low": low, "high": high},
        )

    # The hooks are async, so that no episode needs a thread.

    async def setup(self) -> None:
        """Begin with the whole range."""
        self.low, self.high = int(self.task.data["low"]), int(self.task.data["high"])

    async def reply(self, text: str) -> str | None:
        """Say on which side of the guess the number is; None when it is the number."""
        guess, secret = parse_number(text), self.task.answer
        if guess is None or not self.task.data["low"] <= guess <= self.task.data["high"]:
            return f"Reply with one number between {self.low} and {self.high}."
        if guess == secret:
            return None
        if guess < secret:
            self.low = max(self.low, int(guess) + 1)
            return f"Too low. It is between {self.low} and {self.high}."
        self.high = min(self.high, -int(-guess // 1) - 1)
        return f"Too high. It is between {self.low} and {self.high}."

    async def state_key(self) -> str:
        """What is known about the number."""
        return f"{self.low}-{self.high}"

    @classmethod
    def expert(cls) -> Agent:
        """Guesses the middle of what is left: at most 6 guesses for 32 numbers."""
        return _Expert()


def _draw_low_and_secret(rng: np.random.Generator, config: NumberGuess.Config) -> tuple[int, int]:
    low = int(rng.integers(config.min_low, config.max_low + 1))
    return low, int(rng.integers(low, low + config.width))


class _Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        low, high = _RANGE.findall(view.messages[-1].content)[-1]
        return AssistantTurn(text=str((int(low) + int(high)) // 2))
