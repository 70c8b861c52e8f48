from numpy.random import Generator

from agentrl.envs import ToolEnv
from agentrl.tools import tool
from agentrl.types import AssistantTurn, EpisodeView, Task, ToolCall
from agentrl.verifiers import ExactNumber


class MyEnv(ToolEnv):
    system = "Look up the stock, then reply with the number only."
    verifier = ExactNumber()

    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        return Task(prompt="How many are left?", answer=int(rng.integers(10, 1000)))

    @tool
    def stock(self) -> str:
        """Look up how many are left."""
        return str(self.task.answer)

    @classmethod
    def expert(cls) -> "type[MyEnv]":
        return cls

    @staticmethod
    def act(view: EpisodeView) -> AssistantTurn:
        if view.messages[-1].role == "tool":
            return AssistantTurn(text=view.messages[-1].content)
        return AssistantTurn(calls=(ToolCall(name="stock"),))
