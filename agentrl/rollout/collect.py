"""Many episodes at once, of jobs that are all known: for evaluation, and for loops of one's own.

jobs × group_size  →  at most `concurrency` at a time  →  groups, each when its last episode ended
"""

from collections.abc import AsyncGenerator, Sequence

from agentrl.engine import Engine
from agentrl.rollout.codec import Codec
from agentrl.rollout.collected import PlayedGroup
from agentrl.rollout.driver import Another, CollectSettings, RolloutDriver
from agentrl.rollout.episode_record import GroupJob
from agentrl.schedule import Schedule, Scheduler


class Collector:
    """Plays jobs with one engine."""

    def __init__(self, *, engine: Engine, codec: Codec, settings: CollectSettings) -> None:
        self._engine = engine
        self._codec = codec
        self.settings = settings

    async def collect(
        self,
        jobs: Sequence[GroupJob],
        *,
        group_size: int,
        greedy: bool = False,
        another: Another | None = None,
    ) -> AsyncGenerator[PlayedGroup]:
        """Play every job `group_size` times; each group comes when it has ended.

        With `greedy` each group has one more member, at temperature 0, for comparison alone.
        Closing the iterator early cancels what runs and waits for its end. Each job's key must be
        used once in a run: ids and seeds of episodes follow from it.

        `another` is asked once for each group, as it ends or is left out; the job that it gives is
        played too. It may move the group's episodes to those that are dropped.

        Raises:
            BreakerTripped: too large a share of the episodes was invalid.
            ValueError: two jobs have the same key.
        """
        if not jobs:
            return
        schedule = Schedule(
            groups_per_step=len(jobs),
            members=group_size + greedy,
            steps=1,
            trains=False,
            attempts=self.settings.attempts,
            concurrency=None if self.settings.fixed_order else self.settings.concurrency,
        )
        ended: list[PlayedGroup] = []
        driver = RolloutDriver(
            engine=self._engine,
            codec=self._codec,
            settings=self.settings,
            scheduler=Scheduler(schedule),
            group_size=group_size,
            draw=jobs.__getitem__,
            another=another,
            on_group=ended.append,
        )
        try:
            driver.begin()
            num_given = 0
            while num_given < len(ended) or not driver.scheduler.is_over:
                if num_given == len(ended):
                    await driver.next()
                    continue
                yield ended[num_given]
                num_given += 1
            driver.take(range(len(jobs)))
        finally:
            await driver.aclose()
