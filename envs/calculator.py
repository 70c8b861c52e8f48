"""`calculator`: arithmetic that is easy with the tool and hard without it."""

import operator

import numpy as np
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.agents import call_tool
from agentrl.envs.tasks import require_split, split_of
from agentrl.envs.toolenv import ToolEnv
from agentrl.tools import run_isolated, tool
from agentrl.tools.arithmetic import TooCostly, evaluate
from agentrl.types import Agent, AssistantTurn, EpisodeView, Task
from agentrl.verifiers import ExactNumber

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_MAX_BITS_IN_PLACE = 512
_TIMEOUT_S = 2.0


class Calculator(ToolEnv):
    """One operation on two numbers; the answer is the last turn's text.

    A pair of numbers, in either order, belongs to one split whatever the operator.
    """

    class Config(BaseConfig):
        """Parameters of the tasks."""

        digits: int = Field(default=2, ge=1, le=12, description="digits of each number")
        operators: str = Field(
            default="+-*", pattern=r"^[+*-]+$", description="the operators that are asked for"
        )

    config: Config

    system = "Use the calculator, then reply with the number only."
    max_turns = 4
    verifier = ExactNumber()

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """A pair of numbers that belongs to the split, and an operator."""
        require_split(split)
        a, b = _draw_two_numbers_of_digits(rng, config.digits)
        while split_of("calculator", *sorted((a, b))) != split:
            a, b = _draw_two_numbers_of_digits(rng, config.digits)
        symbol = config.operators[int(rng.integers(len(config.operators)))]
        return Task(
            prompt=f"What is {a} {symbol} {b}?",
            answer=_OPERATORS[symbol](a, b),
            data={"expression": f"{a} {symbol} {b}"},
        )

    @tool
    async def calculator(self, expression: str) -> str:
        """Compute an arithmetic expression.

        Args:
            expression: for example "12 * 34".
        """
        try:
            # Bounded work of some microseconds; a process of its own costs a hundred times that.
            return evaluate(expression, max_bits=_MAX_BITS_IN_PLACE)
        except TooCostly:
            pool = self.services.tool_pool
            value = await run_isolated(pool, "calculator", evaluate, (expression,), {}, _TIMEOUT_S)
            return str(value)

    @classmethod
    def expert(cls) -> Agent:
        """Calls the calculator with the task's expression, then repeats what it said."""
        return _Expert()


def _draw_two_numbers_of_digits(rng: np.random.Generator, digits: int) -> tuple[int, int]:
    a, b = rng.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits, size=2)
    return int(a), int(b)


class _Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        last = view.messages[-1]
        if last.role == "tool":
            return AssistantTurn(text=last.content)
        return call_tool("calculator", expression=view.task.data["expression"])
