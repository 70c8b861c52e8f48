"""Many episodes at once: groups of one task, retries with a fresh environment, and the breaker.

tasks × group_size  →  at most `concurrency` at a time  →  groups, each when its last episode ended
     ↑                      │ invalid: again, with the next attempt's seed         │
     │                      └ out of attempts: left out; too many: the run stops   │
     └───────────────── another job, where the caller has one for it ──────────────┘

A task whose prompt is no text or leaves no room for a turn is left out before: it is no episode.
One failed episode never ends its siblings; only a RunError or a cancellation does.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentrl.engine import Engine
from agentrl.errors import BreakerTripped, ConfigError, EpisodeError
from agentrl.rollout.codec import Codec, LongPrompt, OddPrompt, odd_prompt, too_long
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.rollout.episode_record import GroupJob
from agentrl.rollout.fixed_order import Lockstep
from agentrl.tools import LoopWatch, user_code
from agentrl.types import Episode, EpisodeKey, EpisodeSession, Invalid

BREAKER_MIN_EPISODES = 4
"""Fewer attempts than this say nothing about a share."""


@dataclass(slots=True)
class PlayedGroup:
    """What became of one job."""

    job: GroupJob
    left_out: LongPrompt | OddPrompt | None = None
    """Why it was left out before it began, if it was."""
    episodes: list[Episode] = field(default_factory=list[Episode])
    """Those that could be scored, by member."""
    greedy: Episode | None = None
    """The greedy member, if it was asked for and could be scored."""
    invalid: list[Episode] = field(default_factory=list[Episode])
    """Every attempt without a score, also those that a later attempt made good."""
    dropped: list[Episode] = field(default_factory=list[Episode])
    """Those with a score that nobody trains on; each says why."""
    num_ended: int = 0
    """Members that are done."""


Another = Callable[[PlayedGroup], GroupJob | None]
"""Asked for each group that has ended: a job to be played beside those that run, or None."""


@dataclass(slots=True)
class Collected:
    """What a collection brought: the scored episodes, and every attempt that failed."""

    episodes: list[Episode] = field(default_factory=list[Episode])
    """One per (group, member) that could be scored and was not dropped, in that order."""
    invalid: list[Episode] = field(default_factory=list[Episode])
    """Every attempt without a score, also those that a later attempt made good."""
    too_long: list[LongPrompt] = field(default_factory=list[LongPrompt])
    """Groups that were left out before they began: no turn has room behind their prompt."""
    no_text: list[OddPrompt] = field(default_factory=list[OddPrompt])
    """Groups that were left out before they began: no tokenizer takes their prompt."""
    success_at: dict[str, float] = field(default_factory=dict[str, float])
    """The least score that is a success, by environment, where it is said."""
    greedy: list[Episode] = field(default_factory=list[Episode])
    """The greedy member of each group, where they were asked for; nobody trains on them."""
    dropped: list[Episode] = field(default_factory=list[Episode])
    """Those with a score that nobody trains on, in the same order; each says why."""
    num_groups: int = 0
    """All of them: played, or left out."""

    @property
    def scored(self) -> list[Episode]:
        """All that could be scored, those that are trained on first."""
        return self.episodes + self.dropped

    def __repr__(self) -> str:
        """Short: `asyncio.Runner.run` makes it of every result (in `signal.getsignal`)."""
        return f"Collected({len(self.episodes)} episodes, {len(self.invalid)} invalid)"

    def add(self, group: PlayedGroup) -> None:
        """Count a group in."""
        self.num_groups += 1
        if isinstance(group.left_out, LongPrompt):
            self.too_long.append(group.left_out)
        elif group.left_out is not None:
            self.no_text.append(group.left_out)
        elif group.job.success_at is not None:
            self.success_at[group.job.env] = group.job.success_at
        self.episodes += group.episodes
        self.greedy += [group.greedy] if group.greedy else []
        self.invalid += group.invalid
        self.dropped += group.dropped


async def gather_groups(
    groups: AsyncGenerator[PlayedGroup], on_group: Callable[[int], None] = lambda _: None
) -> Collected:
    """All groups of a collection, in the order of their numbers, whichever ended first.

    `on_group` gets the number of groups that there are so far.
    """
    collected = Collected()
    async with aclosing(groups):
        async for group in groups:
            collected.add(group)
            on_group(collected.num_groups)
    for episodes in (
        collected.episodes,
        collected.dropped,
        collected.greedy,
        collected.invalid,
    ):
        episodes.sort(key=lambda episode: (episode.group, episode.member, episode.attempt))
    return collected


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How a collector runs; see `RolloutConfig` for the meaning of the fields."""

    limits: EpisodeLimits
    temperature: float
    concurrency: int
    attempts: int
    max_invalid_share: float
    fixed_order: bool = False
    """Fixed admission order and batch shapes: see `Lockstep`."""


class Collector:
    """Plays jobs with one engine."""

    def __init__(self, *, engine: Engine, codec: Codec, settings: CollectSettings) -> None:
        self._engine = engine
        self._codec = codec
        self._settings = settings

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
        collection = _Collection(
            self._engine, self._codec, self._settings, group_size, greedy=greedy, another=another
        )
        try:
            # All of them begin before one can end, so that the first round has all of them.
            left_out = [group for job in jobs for group in collection.begin(job)]
            async with LoopWatch():  # it names whoever blocks the loop
                for group in left_out:
                    yield group
                while collection.num_running:
                    for group in await collection.wait_ended():
                        yield group
            collection.check_lost()
        finally:
            await _cancel_and_await_tasks(collection.members)
            await collection.drain()


class _Collection:
    """What the members of all groups of one collection share."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        settings: CollectSettings,
        group_size: int,
        *,
        greedy: bool,
        another: Another | None,
    ) -> None:
        self._engine, self._codec, self._settings = engine, codec, settings
        self._group_size, self._num_members = group_size, group_size + greedy
        self._another = another
        self._groups: list[PlayedGroup] = []
        self._keys: set[EpisodeKey] = set()
        self._invalid: list[Episode] = []
        self.members: list[asyncio.Task[list[PlayedGroup]]] = []
        self.num_running = 0
        """Members whose end nobody has waited for."""
        self._ended: asyncio.Queue[asyncio.Task[list[PlayedGroup]]] = asyncio.Queue()
        self._lockstep = Lockstep(engine) if settings.fixed_order else None
        self._places = (
            nullcontext() if settings.fixed_order else asyncio.Semaphore(settings.concurrency)
        )
        self._runner, self._greedy_runner = (
            EpisodeRunner(
                codec=codec,
                generate=(self._lockstep or engine).generate,
                limits=settings.limits,
                temperature=temperature,
            )
            for temperature in (settings.temperature, 0.0)
        )

    def begin(self, job: GroupJob | None) -> list[PlayedGroup]:
        """Begin all members of a group, or of one in its place; those that were left out."""
        left_out: list[PlayedGroup] = []
        while job is not None:
            if job.key in self._keys:
                raise ValueError(
                    f"two jobs have the key of {job.key.id}; each needs one of its own"
                )
            self._keys.add(job.key)
            group = PlayedGroup(job, self._find_unfit(job))
            if group.left_out is None:
                self._begin_members(group)
                break
            left_out.append(group)
            job = self._another(group) if self._another else None
        return left_out

    def _begin_members(self, group: PlayedGroup) -> None:
        self._groups.append(group)
        if self._lockstep is not None:
            self._lockstep.join(self._num_members)
        for member in range(self._num_members):
            task = asyncio.create_task(self._play_member_until_scored(group, member))
            task.add_done_callback(self._ended.put_nowait)
            self.members.append(task)
            self.num_running += 1

    def _find_unfit(self, job: GroupJob) -> LongPrompt | OddPrompt | None:
        """Why no episode can begin; what else goes wrong is the episode's to report."""
        try:
            with user_code(f"making env {job.env}"):
                env = job.make_env()
            limit = self._settings.limits.prompt_tokens
            odd = odd_prompt(env, job.env, job.task)
            return odd or too_long(env, job.env, job.task, self._codec, limit)
        except (EpisodeError, ConfigError):
            return None

    async def wait_ended(self) -> list[PlayedGroup]:
        """The groups that came to their end with the next member: its own, and those left out."""
        ended = await self._ended.get()
        self.num_running -= 1
        return ended.result()

    async def _play_member_until_scored(self, group: PlayedGroup, member: int) -> list[PlayedGroup]:
        """One member of a group: attempts until one is scored or none is left."""
        try:
            async with self._places:
                for attempt in range(self._settings.attempts):
                    if await self._play_attempt_and_sort(group, member, attempt):
                        break
            # Before this one leaves: a group in the place of its own is in the same next round.
            # The group, if this was the last of its members, and those left out in its place.
            group.num_ended += 1
            if group.num_ended < self._num_members:
                return []
            group.episodes.sort(key=lambda episode: episode.member)
            return [group, *self.begin(self._another(group) if self._another else None)]
        finally:
            if self._lockstep is not None:
                self._lockstep.leave()

    async def _play_attempt_and_sort(self, group: PlayedGroup, member: int, attempt: int) -> bool:
        """Play one attempt; True if no other one is to follow."""
        key = group.job.key.of_try(member, attempt)
        is_greedy = member == self._group_size
        runner = self._greedy_runner if is_greedy else self._runner
        episode = await runner.run(group.job, key)
        await self._engine.end_session(EpisodeSession(episode.id))
        if not isinstance(episode.outcome, Invalid):
            if is_greedy:
                group.greedy = episode
            else:
                group.episodes.append(episode)
            return True
        group.invalid.append(episode)
        self._invalid.append(episode)
        # Stop early where hardly any attempt succeeds.
        total = self._num_episodes
        most = max(BREAKER_MIN_EPISODES, self._settings.attempts * total // 2)
        if len(self._invalid) > most:
            raise BreakerTripped(
                f"{len(self._invalid)} attempts at {total} episodes were invalid:\n"
                f"{_tabulate_reasons(self._invalid)}"
            )
        return not episode.outcome.retryable

    @property
    def _num_episodes(self) -> int:
        return len(self._groups) * self._num_members

    def check_lost(self) -> None:
        """Stop if too many episodes stayed without a score."""
        scored = sum(
            len(g.episodes) + len(g.dropped) + (g.greedy is not None) for g in self._groups
        )
        lost = self._num_episodes - scored
        if lost > self._settings.max_invalid_share * self._num_episodes:
            raise BreakerTripped(
                f"{lost} of {self._num_episodes} episodes stayed without a score, at most a share "
                f"of {self._settings.max_invalid_share:g} is allowed (rollout.max_invalid_share):\n"
                f"{_tabulate_reasons(self._invalid)}"
            )

    async def drain(self) -> None:
        """Wait for what is left of a round whose episodes have gone."""
        if self._lockstep is not None:
            await self._lockstep.drain()


async def _cancel_and_await_tasks(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Cancel what still runs and wait for its end, also if that is cancelled in its turn."""
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:  # so that asyncio does not report what has been raised already
        if not task.cancelled():
            task.exception()
    if cancelled is not None:
        raise cancelled


def _tabulate_reasons(invalid: Sequence[Episode]) -> str:
    """A table of why episodes were invalid, the commonest first."""
    counts = Counter(
        (e.outcome.blame, e.outcome.reason) for e in invalid if isinstance(e.outcome, Invalid)
    )
    rows = [f"  {n:5d} x {blame}: {reason}" for (blame, reason), n in counts.most_common(8)]
    return "\n".join(rows)
