"""Small tasks that a tiny model learns in a minute, each for what one kind of algorithm is for.

A key is a digit and the answer is another one, by a rule that only rewards tell: the warm start's
demonstrations answer with a digit drawn at random.
"""

import numpy as np
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs import ToolEnv
from agentrl.types import Agent, AssistantTurn, EpisodeView, Score, Task

DIGITS = 8
COST_LIMIT = 0.3
"""Of the mean cost in `Speed`."""


def answer_to(key: int) -> int:
    """The rule."""
    return (5 * key + 3) % DIGITS


class Keys(ToolEnv):
    """One key, one answer; the reward is 1 or 0."""

    class Config(BaseConfig):
        """Parameters of the tasks."""

        any_digit: bool = Field(default=False, description="every digit is right")
        known: float = Field(
            default=0.3, ge=0, le=1, description="how often a demonstration follows the rule"
        )

    config: Config

    system = "Reply with a digit."
    max_turns = 1
    success_at = 1.0

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """A key, and what a demonstration says."""
        key, guess = (int(n) for n in rng.integers(DIGITS, size=2))
        said = answer_to(key) if rng.random() < config.known else guess
        return Task(prompt=f"Key {key}.", answer=answer_to(key), data={"said": [said]})

    async def score(self, answer: str) -> float:
        """1 for the answer."""
        said = answer.strip()
        if self.config.any_digit:
            return float(said.isdigit() and len(said) == 1)
        return float(said == str(self.task.answer))

    @classmethod
    def expert(cls) -> Agent:
        """Says what the demonstration says."""
        return _Guess()


class Walk(ToolEnv):
    """Keys one after the other, whatever was answered; each right answer has its part of the whole.

    Who is told of the sum only learns from each right answer and from each wrong one beside it.
    """

    class Config(BaseConfig):
        """Parameters of the tasks."""

        any_digit: bool = Field(default=False, description="every episode has the score 1")
        known: float = Field(
            default=0.3, ge=0, le=1, description="how often a demonstration follows the rule"
        )

        steps: int = Field(default=12, ge=1, description="keys of an episode")

    config: Config

    system = "Reply with a digit."
    max_turns = 24

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """The keys of an episode."""
        keys = [int(key) for key in rng.integers(DIGITS, size=config.steps)]
        said = [
            answer_to(key) if rng.random() < config.known else int(rng.integers(DIGITS))
            for key in keys
        ]
        return Task(prompt=f"Key {keys[0]}.", answer=keys, data={"said": said})

    async def setup(self) -> None:
        """Begin with the first key."""
        self.passed = 0

    async def reply(self, text: str) -> str | None:
        """The next key."""
        key = self.task.answer[self.passed]
        if text.strip() == str(answer_to(key)) or (
            self.config.any_digit and text.strip().isdigit()
        ):
            self.reward(1 / self.config.steps)
        self.passed += 1
        if self.passed == self.config.steps:
            return None
        return f"Key {self.task.answer[self.passed]}."

    async def state_key(self) -> str:
        """The key that is shown."""
        return f"{self.task.answer[min(self.passed, self.config.steps - 1)]}"

    async def score(self, answer: str) -> float:
        """What the turns gave is all."""
        return float(self.config.any_digit)

    @classmethod
    def expert(cls) -> Agent:
        """Says what the demonstration says."""
        return _Guess()


class Speed(ToolEnv):
    """A speed from 0 to 7: the faster the better, but each costs its square."""

    class Config(BaseConfig):
        """Parameters of the tasks."""

        any_digit: bool = Field(default=False, description="every digit is right")

    config: Config

    system = "Reply with a digit."
    max_turns = 1
    success_at = 1.0

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str) -> Task:
        """A road."""
        key, said = (int(n) for n in rng.integers(DIGITS, size=2))
        return Task(prompt=f"Road {key}.", data={"said": [said]})

    async def score(self, answer: str) -> Score:
        """The speed, and its cost."""
        said = answer.strip()
        if not (said.isdigit() and len(said) == 1):
            return Score(value=0.0, parts={"cost": 0.0})
        share = min(int(said), DIGITS - 1) / (DIGITS - 1)
        value = 1.0 if self.config.any_digit else share
        return Score(value=value, parts={"cost": share**2})

    @classmethod
    def expert(cls) -> Agent:
        """Says what the demonstration says."""
        return _Guess()


class _Guess:
    def act(self, view: EpisodeView) -> AssistantTurn:
        said = view.task.data["said"]
        turn = sum(message.role == "assistant" for message in view.messages)
        return AssistantTurn(text=str(said[turn]))
