from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl.rollout import EnvSource, TaskRef


class AtRandom(Iterator[list[TaskRef]]):
    """Any task of any environment, by a generator whose state the checkpoint keeps."""

    def __init__(self, sources: Sequence[EnvSource], *, tasks_per_step: int, seed: int) -> None:
        self.sources, self.count = sources, tasks_per_step
        self.rng = np.random.default_rng(seed)

    def __next__(self) -> list[TaskRef]:
        envs: list[int] = self.rng.integers(len(self.sources), size=self.count).tolist()
        most = [self.sources[env].num_tasks or 1_000_000 for env in envs]
        return [TaskRef(e, int(i)) for e, i in zip(envs, self.rng.integers(most), strict=True)]

    def state(self) -> object:
        return self.rng.bit_generator.state

    def load(self, state: Any) -> None:
        self.rng.bit_generator.state = state
