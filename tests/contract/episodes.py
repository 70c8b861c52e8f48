"""What the tests of the environment contract are written with."""

from contextlib import contextmanager
from typing import Any, ClassVar

from agentrl.envs import ToolEnv, Transition
from agentrl.envs.tasks import Tasks
from agentrl.tools import tool
from agentrl.types import (
    AssistantTurn,
    CallError,
    Json,
    Score,
    ToolCall,
)


def say(text: str) -> AssistantTurn:
    return AssistantTurn(text=text)


def call(name: str, **arguments: Json) -> AssistantTurn:
    return calls(ToolCall(name=name, arguments=arguments, id="call_0"))


def calls(*items: ToolCall | CallError) -> AssistantTurn:
    return AssistantTurn(calls=items)


def texts(transition: Transition) -> list[str]:
    return [message.content for message in transition.messages]


async def play(env: ToolEnv, *turns: AssistantTurn, seed: int = 0) -> list[Transition]:
    await env.areset(seed=seed)
    return [await env.advance(turn) for turn in turns]


class Base(ToolEnv):
    """This docstring is documentation."""

    tasks: ClassVar[Tasks | None] = ({"prompt": "Go.", "answer": "yes"},)
    grace_s = 0.05

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[str] = []

    def score(self, answer: Any) -> Score | float:
        self.log.append("score")
        return Score(value=float(answer == "yes"))

    @tool
    async def note(self, text: str) -> str:
        """Write something down.

        Args:
            text: what to write.
        """
        self.log.append(text)
        return f"noted {text}"

    @tool
    async def done(self, answer: str = "yes") -> str:
        """End.

        Args:
            answer: the answer.
        """
        return self.finish(answer)


class Guarded(Base):
    """Logs what is opened and closed."""

    @contextmanager
    def opened(self, name: str) -> Any:
        self.log.append(f"open {name}")
        yield name
        self.log.append(f"close {name}")

    def setup(self) -> None:
        self.log.clear()
        self.resources.enter_context(self.opened("a"))
        self.resources.enter_context(self.opened("b"))

    def teardown(self) -> None:
        self.log.append("teardown")

    @tool
    def crash(self) -> str:
        """Fail."""
        raise KeyError("lost")


CLOSED = ["teardown", "close b", "close a"]
