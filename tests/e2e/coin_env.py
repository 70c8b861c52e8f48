"""An environment whose rewards are as good as coins; ten tasks, so epochs end."""

from agentrl.envs import ToolEnv
from agentrl.types import Score, Task


class Coin(ToolEnv):
    tasks = [Task(prompt=f"Task {i}", answer=i) for i in range(10)]  # noqa: RUF012

    def score(self, answer: str) -> Score:
        return Score(value=float(len(answer) % 2))
