from numpy.random import Generator

from agentrl.envs import ToolEnv
from agentrl.errors import ToolError
from agentrl.tools import tool
from agentrl.types import Task
from agentrl.verifiers import ExactNumber


class MyEnv(ToolEnv):
    system = "Look up the stock, then reply with the number only."
    verifier = ExactNumber()

    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        item, count = str(rng.choice(["nuts", "pens", "cups"])), int(rng.integers(10, 100))
        return Task(prompt=f"How many {item}?", answer=count, data={"stock": {item: count}})

    @tool
    def look_up(self, item: str) -> str:
        """Look up how many are left.

        Args:
            item: the name of the item.
        """
        if item not in self.task.data["stock"]:
            raise ToolError(f"there is no {item}")
        return str(self.task.data["stock"][item])
