from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl import Observer
from agentrl.types import Episode


class Rewards(Observer):
    """Keeps the rewards of each step and the gaps beside them, a line each."""

    def __init__(self) -> None:
        self.line = ""

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        self.line = ",".join(str(episode.reward) for episode in episodes)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        with Path("rewards.csv").open("a") as file:
            print(step, metrics["gap_mean"], self.line, sep=",", file=file)
