"""Many episodes at once: groups of one task, retries with a fresh environment, and the breaker.

tasks × group_size  →  at most `concurrency` at a time  →  groups of scored episodes
                            │ invalid: again, with the next attempt's seed
                            └ out of attempts: left out; too many in a step: the run stops

A task whose prompt is no text or leaves no room for a turn is left out before: it is no episode.
One failed episode never ends its siblings; only a RunError or a cancellation does.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agentrl.engine import Engine
from agentrl.envs import ToolEnv
from agentrl.errors import BreakerTripped, ConfigError, EpisodeError
from agentrl.rollout.codec import Codec
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner, Generate
from agentrl.rollout.episode_state import EpisodeSpec
from agentrl.rollout.fixed_order import Lockstep
from agentrl.rollout.prompts import LongPrompt, OddPrompt, odd_prompt, too_long
from agentrl.rollout.seeds import derive_seed
from agentrl.tools import LoopWatch, user_code
from agentrl.types import Episode, EpisodeSession, Invalid, Task

T = TypeVar("T")

BREAKER_MIN_EPISODES = 4
"""Fewer attempts than this say nothing about a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task to be played by a whole group."""

    env: str
    make_env: Callable[[], ToolEnv]
    task: Task
    split: str
    group: int
    """Number of the group within its step; episodes of a group are compared with each other."""
    success_at: float | None = None
    """The least score that is a success, if the environment or its verifier says it."""


@dataclass(slots=True)
class Collected:
    """What a collection brought: the scored episodes, and every attempt that failed."""

    episodes: list[Episode] = field(default_factory=list[Episode])
    """One per (group, member) that could be scored, in that order."""
    invalid: list[Episode] = field(default_factory=list[Episode])
    """Every attempt without a score, also those that a later attempt made good."""
    too_long: list[LongPrompt] = field(default_factory=list[LongPrompt])
    """Groups that were left out before they began: no turn has room behind their prompt."""
    no_text: list[OddPrompt] = field(default_factory=list[OddPrompt])
    """Groups that were left out before they began: no tokenizer takes their prompt."""
    success_at: dict[str, float] = field(default_factory=dict[str, float])
    """The least score that is a success, by environment, where it is said."""

    def __repr__(self) -> str:
        """Short: `asyncio.Runner.run` makes it of every result (in `signal.getsignal`)."""
        return f"Collected({len(self.episodes)} episodes, {len(self.invalid)} invalid)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How a collector runs; see `RolloutConfig` for the meaning of the fields."""

    limits: EpisodeLimits
    temperature: float
    concurrency: int
    attempts: int
    max_invalid_share: float
    fixed_order: bool = False
    """Fixed admission order and batch shapes: see `lockstep`."""


class Collector:
    """Plays jobs with one engine."""

    def __init__(self, *, engine: Engine, codec: Codec, settings: CollectSettings) -> None:
        self._engine = engine
        self._codec = codec
        self._settings = settings

    async def collect(
        self,
        jobs: Sequence[Job],
        *,
        group_size: int,
        seed: int,
        step: int,
        purpose: str = "train",
        on_episode: Callable[[Episode], None] = lambda _: None,
    ) -> Collected:
        """Play every job `group_size` times.

        (`purpose`, `step`) must be used once in a run: ids and seeds of episodes derive from them.

        Raises:
            BreakerTripped: too large a share of the episodes was invalid.
        """
        settings = self._settings
        unfit = [self._unfit(job) for job in jobs]
        jobs = [job for job, left_out in zip(jobs, unfit, strict=True) if left_out is None]
        total = len(jobs) * group_size
        gate = Lockstep(self._engine) if settings.fixed_order else None
        if gate is not None:
            gate.join(total)
        runner = self._runner(gate.generate if gate is not None else self._engine.generate)
        places = asyncio.Semaphore(total if gate is not None else settings.concurrency)
        said = {job.env: job.success_at for job in jobs if job.success_at is not None}
        collected = Collected(
            success_at=said,
            too_long=[one for one in unfit if isinstance(one, LongPrompt)],
            no_text=[one for one in unfit if isinstance(one, OddPrompt)],
        )

        async def play(job: Job, member: int) -> Episode | None:
            try:
                async with places:
                    return await self._member(
                        runner, job, member, (seed, purpose, step), collected, on_episode, total
                    )
            finally:
                if gate is not None:
                    gate.leave()

        try:
            async with LoopWatch():  # it names whoever blocks the loop
                played = await _together([play(job, m) for job in jobs for m in range(group_size)])
        finally:
            if gate is not None:
                await gate.drain()
        collected.episodes = [episode for episode in played if episode is not None]
        self._check_lost(collected, total)
        return collected

    def _unfit(self, job: Job) -> LongPrompt | OddPrompt | None:
        """Why no episode can begin; what else goes wrong is the episode's to report."""
        try:
            with user_code(f"making env {job.env}"):
                env = job.make_env()
            limit = self._settings.limits.prompt_tokens
            odd = odd_prompt(env, job.env, job.task)
            return odd or too_long(env, job.env, job.task, self._codec, limit)
        except (EpisodeError, ConfigError):
            return None

    def _runner(self, generate: Generate) -> EpisodeRunner:
        settings = self._settings
        return EpisodeRunner(
            codec=self._codec,
            generate=generate,
            limits=settings.limits,
            temperature=settings.temperature,
        )

    async def _member(
        self,
        runner: EpisodeRunner,
        job: Job,
        member: int,
        origin: tuple[int, str, int],
        collected: Collected,
        on_episode: Callable[[Episode], None],
        total: int,
    ) -> Episode | None:
        """One member of a group: attempts until one is scored or none is left."""
        seed, purpose, step = origin
        for attempt in range(self._settings.attempts):
            parts = (seed, purpose, step, job.task.id, job.group, member, attempt)
            spec = EpisodeSpec(
                id=f"{purpose}-s{step}-g{job.group}-m{member}-a{attempt}",
                env=job.env,
                task=job.task,
                split=job.split,
                group=job.group,
                member=member,
                attempt=attempt,
                seed=derive_seed(*parts),
            )
            episode = await runner.run(spec, job.make_env)
            await self._engine.end_session(EpisodeSession(spec.id))
            on_episode(episode)
            if not isinstance(episode.outcome, Invalid):
                return episode
            collected.invalid.append(episode)
            self._check_attempts(collected.invalid, total)
            if not episode.outcome.retryable:
                return None
        return None

    def _check_attempts(self, invalid: Sequence[Episode], total: int) -> None:
        """Stop early where hardly any attempt succeeds."""
        most = max(BREAKER_MIN_EPISODES, self._settings.attempts * total // 2)
        if len(invalid) > most:
            raise BreakerTripped(
                f"{len(invalid)} attempts at {total} episodes were invalid:\n{reasons(invalid)}"
            )

    def _check_lost(self, collected: Collected, total: int) -> None:
        """Stop if too many episodes stayed without a score."""
        lost = total - len(collected.episodes)
        if lost > self._settings.max_invalid_share * total:
            raise BreakerTripped(
                f"{lost} of {total} episodes stayed without a score, at most a share of "
                f"{self._settings.max_invalid_share:g} is allowed (rollout.max_invalid_share):\n"
                f"{reasons(collected.invalid)}"
            )


async def _together(work: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """Run all; the first error of the run cancels the rest and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


def reasons(invalid: Sequence[Episode]) -> str:
    """A table of why episodes were invalid, the commonest first."""
    counts = Counter(
        (e.outcome.blame, e.outcome.reason) for e in invalid if isinstance(e.outcome, Invalid)
    )
    rows = [f"  {n:5d} x {blame}: {reason}" for (blame, reason), n in counts.most_common(8)]
    return "\n".join(rows)
