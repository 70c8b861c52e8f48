"""One episode: the environment and the engine take turns until something ends it.

    prompt → sample → parse → advance → observation → sample → ... → score

All of it happens on ids: the record takes the sampled ids as they are, and only what the
environment adds is rendered.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from agentrl.envs import ToolEnv, Transition
from agentrl.errors import (
    EngineError,
    EnvironmentFault,
    EpisodeError,
    RecordMismatch,
    RunError,
)
from agentrl.rollout.codec import Codec
from agentrl.tokens import Renderer, TokenRecord
from agentrl.types import (
    AssistantTurn,
    Completion,
    Episode,
    EpisodeStop,
    EpisodeView,
    Invalid,
    Message,
    Outcome,
    Sampling,
    Score,
    Segment,
    Session,
    StopReason,
    Task,
    TurnRecord,
)

T = TypeVar("T")


class Generate(Protocol):
    """The part of an engine that an episode needs."""

    async def __call__(self, ids: list[int], sampling: Sampling, session: Session) -> Completion:
        """As `Engine.generate`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The budgets of one episode."""

    turn_tokens: int
    episode_tokens: int
    """Prompt included."""
    wall_s: float | None
    """None: no limit."""
    setup_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episode to run: everything that its record says before it starts."""

    id: str
    env: str
    task: Task
    split: str
    group: int
    member: int
    attempt: int
    seed: int


@dataclass(slots=True)
class _Running:
    """What an episode has so far; kept outside the loop so that a failure loses nothing."""

    record: TokenRecord
    env: ToolEnv | None = None
    turns: list[TurnRecord] = field(default_factory=list[TurnRecord])
    last: AssistantTurn | None = None
    advancing_since: float | None = None
    """When the environment began to answer the last turn; None once its answer is booked."""
    stop: EpisodeStop | None = None
    outcome: Outcome | None = None
    score_s: float = 0.0
    messages: tuple[Message, ...] = ()
    answer: object = None


class EpisodeRunner:
    """Runs episodes against one engine with one codec and one set of limits."""

    def __init__(
        self, *, codec: Codec, generate: Generate, limits: Limits, temperature: float
    ) -> None:
        self._codec = codec
        self._generate = generate
        self._limits = limits
        self._temperature = temperature

    async def run(self, spec: EpisodeSpec, make_env: Callable[[], ToolEnv]) -> Episode:
        """Run one episode in a fresh environment. Never raises for a failure of the episode.

        Raises:
            RunError: the run itself cannot go on.
        """
        start = time.perf_counter()
        running = _Running(TokenRecord(self._codec.tokenizer.vocab_size))
        try:
            failed = await _as_data(self._play_and_score(spec, make_env, running))
        finally:
            closing = await _as_data(self._close(running))
        running.outcome = closing or failed or running.outcome
        return _episode(spec, running, wall_s=time.perf_counter() - start)

    async def _play_and_score(
        self, spec: EpisodeSpec, make_env: Callable[[], ToolEnv], running: _Running
    ) -> None:
        env = running.env = make_env()
        await self._play(spec, env, running)
        running.outcome = await self._score(env, running)

    async def _play(self, spec: EpisodeSpec, env: ToolEnv, running: _Running) -> None:
        """Take turns until `running.stop` is set."""
        limits = self._limits
        options = {"task": spec.task, "split": spec.split}
        await _within(limits.setup_s, env.areset(seed=spec.seed, options=options), "reset")
        renderer = self._codec.renderer(env.tool_schemas)
        prompt = self._codec.prompt(renderer, env.conversation)
        if len(prompt) >= limits.episode_tokens:
            raise EnvironmentFault(
                f"the prompt has {len(prompt)} tokens, but an episode may have "
                f"{limits.episode_tokens} in all; shorten it or raise rollout.max_episode_tokens"
            )
        running.record.append_prompt(prompt)
        clock = asyncio.timeout(limits.wall_s)
        try:
            async with clock:
                while running.stop is None:
                    await self._turn(spec, env, renderer, running)
        except TimeoutError:
            if not clock.expired():
                raise
            await self._truncate(env, running, EpisodeStop.WALL_TIME)

    async def _turn(
        self, spec: EpisodeSpec, env: ToolEnv, renderer: Renderer, running: _Running
    ) -> None:
        """Sample one completion, let the environment answer it, append both."""
        record = running.record
        room = self._limits.episode_tokens - record.num_tokens
        if room < 1:
            await self._truncate(env, running, EpisodeStop.EPISODE_TOKENS)
            return
        started = time.perf_counter()
        completion = await self._sample(spec, env, renderer, running, room)
        if completion.stop_reason is StopReason.ABORT:
            raise EngineError(f"the engine aborted the completion of turn {record.turn}")
        try:
            record.append_sampled(completion)
        except RecordMismatch as error:
            raise RecordMismatch(f"episode {spec.id}: {error}") from error
        sampled = time.perf_counter()
        # Already here, should the environment be cut off.
        running.turns.append(_sampled_turn(completion, sampled - started))
        turn = self._codec.parse(completion.ids_T, completion.stop_reason, env.tool_schemas)
        running.last, running.advancing_since = turn, sampled
        transition = await env.advance(turn)
        _book(running, transition)
        running.stop = transition.stop
        if running.stop is None:
            ids = renderer.observation(transition.messages)
            if record.num_tokens + len(ids) >= self._limits.episode_tokens:
                await self._truncate(env, running, EpisodeStop.EPISODE_TOKENS)
            else:
                record.append_environment(ids)

    async def _sample(
        self, spec: EpisodeSpec, env: ToolEnv, renderer: Renderer, running: _Running, room: int
    ) -> Completion:
        sampling = Sampling(
            max_tokens=min(room, self._limits.turn_tokens),
            temperature=self._temperature,
            stop_ids=renderer.stop_ids,
            # one seed per turn, so that a turn can be drawn again from its record
            seed=(spec.seed + 0x9E3779B97F4A7C15 * (len(running.turns) + 1)) % 2**63,
        )

        def view() -> EpisodeView:
            return EpisodeView(task=spec.task, messages=env.conversation)

        session = Session(spec.id, view)
        return await self._generate(running.record.ids, sampling, session)

    async def _truncate(self, env: ToolEnv, running: _Running, stop: EpisodeStop) -> None:
        running.stop = stop
        transition = await env.truncate(stop, running.last)
        if running.advancing_since is not None:
            _book(running, transition)

    async def _score(self, env: ToolEnv, running: _Running) -> Outcome:
        started = time.perf_counter()
        outcome = await env.ascore()
        running.score_s = time.perf_counter() - started
        return outcome

    async def _close(self, running: _Running) -> None:
        """Keep what the record needs, then tear down."""
        env = running.env
        if env is None:
            return
        if env.in_episode:
            running.messages, running.answer = env.conversation, env.answer
        await _within(self._limits.setup_s, env.aclose(), "teardown")


async def _as_data(work: Awaitable[None]) -> Invalid | None:
    """Do the work; what it raises makes the episode invalid, unless it is the run's end."""
    try:
        await work
    except RunError:
        raise
    except Exception as error:  # the one place where an episode's failure becomes data
        return _invalid(error)
    return None


async def _within(seconds: float, work: Awaitable[T], what: str) -> T:
    """Wait for the environment's work, at most so long."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await work
    except TimeoutError as error:
        if not clock.expired():
            raise
        message = f"the environment's {what} took longer than {seconds:g} s (rollout.setup_s)"
        raise EnvironmentFault(message) from error


def _invalid(error: Exception) -> Invalid:
    """An exception as data: whose fault it was, and what to read in a table of reasons."""
    if isinstance(error, EpisodeError):
        return Invalid(reason=str(error), blame=error.blame)
    return Invalid(reason=f"{type(error).__name__}: {error}", blame="environment")


def _sampled_turn(completion: Completion, seconds: float) -> TurnRecord:
    return TurnRecord(
        num_sampled=len(completion.ids_T),
        cached_tokens=completion.cached_tokens,
        generate_s=seconds,
    )


def _book(running: _Running, transition: Transition) -> None:
    """Add to the last turn what the environment made of it."""
    assert running.advancing_since is not None
    running.turns[-1] = replace(
        running.turns[-1],
        reward=transition.reward,
        parts=transition.parts,
        state_key=transition.state_key,
        num_calls=transition.num_calls,
        call_errors=transition.call_errors,
        environment_s=time.perf_counter() - running.advancing_since,
    )
    running.advancing_since = None


def _episode(spec: EpisodeSpec, running: _Running, *, wall_s: float) -> Episode:
    outcome = running.outcome or Invalid(reason="the episode was not scored", blame="environment")
    invalid = isinstance(outcome, Invalid)
    turns = running.turns or [TurnRecord()]
    if isinstance(outcome, Score):
        last = replace(
            turns[-1],
            reward=turns[-1].reward + outcome.value,
            parts={**turns[-1].parts, **outcome.parts},
        )
        turns = [*turns[:-1], last]
    segments: tuple[Segment, ...] = (running.record.close(),) if running.record.num_tokens else ()
    return Episode(
        id=spec.id,
        env=spec.env,
        task=spec.task,
        split=spec.split,
        group=spec.group,
        member=spec.member,
        attempt=spec.attempt,
        seed=spec.seed,
        segments=segments,
        messages=running.messages,
        turns=tuple(turns),
        stop=EpisodeStop.INVALID if invalid else running.stop or EpisodeStop.INVALID,
        outcome=outcome,
        answer=running.answer,
        wall_s=wall_s,
        score_s=running.score_s,
    )
