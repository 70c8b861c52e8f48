"""One episode: the environment and the engine take turns until something ends it.

    prompt → sample → parse → advance → observation → sample → ... → score
                                          │
                                          └ or, by the context policy, or where the template
                                            rewrites history: a new segment's prompt

All of it happens on ids: the record takes the sampled ids as they are, and only what the
environment adds is rendered.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.aio import OutOfTime, within
from agentrl.envs import ToolEnv
from agentrl.envs.context import (
    Ask,
    ContextView,
    checked_decision,
    checked_messages,
    followed_by,
)
from agentrl.errors import (
    EngineError,
    EnvironmentFault,
    EpisodeError,
    RecordMismatch,
    RunError,
)
from agentrl.places import place_of, said_by
from agentrl.rollout.codec import Codec
from agentrl.rollout.episode_record import Segments
from agentrl.rollout.episode_state import EpisodeSpec, Running
from agentrl.rollout.seeds import derive_seed
from agentrl.tokens import Renderer
from agentrl.tools import user_code
from agentrl.types import (
    AssistantTurn,
    Completion,
    Episode,
    EpisodeSession,
    EpisodeStop,
    EpisodeView,
    Invalid,
    Message,
    Outcome,
    Sampling,
    StopReason,
    ToolSchema,
)


class Generate(Protocol):
    """The part of an engine that an episode needs."""

    async def __call__(
        self, ids: list[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """As `Engine.generate`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """The budgets of one episode."""

    max_new_tokens: int
    """Most tokens of one completion."""
    max_context_tokens: int
    """Most tokens of a segment: of a request and its completion together."""
    max_episode_tokens: int | None = None
    """Most tokens of all segments, each with its prompt; None: no limit."""
    wall_s: float | None
    """None: no limit."""
    setup_s: float

    @property
    def prompt_tokens(self) -> int:
        """A first prompt of so many tokens leaves no room for a turn."""
        return min(self.max_context_tokens, self.max_episode_tokens or self.max_context_tokens)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a running episode is played with."""

    spec: EpisodeSpec
    env: ToolEnv
    tools: tuple[ToolSchema, ...]
    renderer: Renderer
    running: Running
    context_seed: int


class EpisodeRunner:
    """Runs episodes against one engine with one codec and one set of limits."""

    def __init__(
        self, *, codec: Codec, generate: Generate, limits: EpisodeLimits, temperature: float
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
        running = Running(Segments(self._codec.tokenizer.vocab_size))
        async with AsyncExitStack() as admission:
            try:
                failed = await _as_data(self._play_and_score(spec, make_env, running, admission))
            finally:
                closing = await _as_data(self._close(running))
        running.outcome = closing or failed or running.outcome
        return running.episode(spec, wall_s=time.perf_counter() - start)

    async def _play_and_score(
        self,
        spec: EpisodeSpec,
        make_env: Callable[[], ToolEnv],
        running: Running,
        admission: AsyncExitStack,
    ) -> None:
        env = running.env = make_env()
        await admission.enter_async_context(env.admission(spec.task))
        await self._play_turns(spec, env, running)
        running.outcome = await self._score(env, running)

    async def _play_turns(self, spec: EpisodeSpec, env: ToolEnv, running: Running) -> None:
        """Take turns until `running.stop` is set."""
        limits = self._limits
        options = {"task": spec.task, "split": spec.split}
        await _within(limits.setup_s, env.areset(seed=spec.seed, options=options), "reset")
        running.first = env.conversation
        tools = env.tool_schemas
        context_seed = derive_seed("context", spec.task.id)
        parts = _Parts(spec, env, tools, self._codec.renderer(tools), running, context_seed)
        prompt = self._codec.prompt(parts.renderer, running.first)
        if len(prompt) >= limits.prompt_tokens:
            raise EnvironmentFault(  # it has become longer in `setup`
                f"the prompt has {len(prompt)} tokens, expected less than {limits.prompt_tokens}"
            )
        running.segments.begin(prompt, running.first, len(running.first))
        try:
            await within(limits.wall_s, self._take_turns(parts))
        except OutOfTime:
            await self._truncate(parts, EpisodeStop.WALL_TIME)

    async def _take_turns(self, parts: _Parts) -> None:
        while parts.running.stop is None:
            await self._take_turn(parts)

    async def _take_turn(self, parts: _Parts) -> None:
        """Sample one completion, let the environment answer it, append both."""
        running = parts.running
        full = self._full(running)
        if full is not None:
            await self._truncate(parts, full)
            return
        shown = running.segments.shown(parts.env.conversation)
        completion = await self._sample(parts, shown, trained=True)
        turn = self._parse_turn(parts, completion, parts.tools)
        running.last, running.advancing_since = turn, time.perf_counter()
        transition = await parts.env.advance(turn)
        running.book(transition)
        running.stop = transition.stop
        if running.stop is None:
            await self._show_observation(parts, transition.messages)

    async def _show_observation(self, parts: _Parts, new: Sequence[Message]) -> None:
        """Append what the environment answered, or begin the next segment."""
        record = parts.running.segments.record
        shown = parts.running.segments.shown(parts.env.conversation)
        step = parts.renderer.continuation(record.ids, shown, len(new))
        view = ContextView(
            first=parts.running.first,
            messages=shown,
            num_new=len(new),
            num_tokens=0 if step.forks else record.num_tokens,
            new_tokens=len(step.ids),
            limit=self._limits.max_context_tokens,
            seed=parts.context_seed,
            count=lambda messages: len(parts.renderer.prompt(messages)),
        )
        with user_code("the context policy"):
            decision = checked_decision(parts.env.context(view))
        if isinstance(decision, Ask):
            await self._ask_policy(parts, decision, view)
        elif decision is not None:
            await self._begin_segment(parts, decision)
        elif step.forks:
            await self._begin_segment(parts, shown)
        elif (full := self._full(parts.running, len(step.ids))) is not None:
            await self._truncate(parts, full)
        else:
            record.append_environment(step.ids)

    async def _ask_policy(self, parts: _Parts, ask: Ask, view: ContextView) -> None:
        """Let the model answer the context policy, then begin the next segment with its answer."""
        new = followed_by(view.messages[-view.num_new :], ask.request)
        shown = (*view.messages[: -view.num_new], *new)
        record = parts.running.segments.record
        step = parts.renderer.continuation(record.ids, shown, len(new))
        if step.forks:
            await self._begin_segment(parts, shown)
        elif (full := self._full(parts.running, len(step.ids))) is not None:
            await self._truncate(parts, full)
        else:
            record.append_environment(step.ids)
        if parts.running.stop is not None:
            return
        completion = await self._sample(parts, shown, trained=ask.trained)
        answer = self._parse_turn(parts, completion, ())
        with user_code("the context policy"):
            messages = checked_messages(ask.then(answer.text))
        await self._begin_segment(parts, messages)

    async def _begin_segment(self, parts: _Parts, messages: Sequence[Message]) -> None:
        """Close the segment; the next one stands for the conversation so far."""
        ids = parts.renderer.prompt(messages)
        if (full := self._full(parts.running, len(ids), fresh=True)) is not None:
            await self._truncate(parts, full)
            return
        parts.running.segments.begin(ids, messages, len(parts.env.conversation))

    def _full(self, running: Running, more: int = 0, *, fresh: bool = False) -> EpisodeStop | None:
        """Which budget leaves no room for a completion behind `more` tokens, in a fresh segment."""
        limits = self._limits
        before = 0 if fresh else running.segments.record.num_tokens
        if before + more >= limits.max_context_tokens:
            return EpisodeStop.CONTEXT_TOKENS
        if limits.max_episode_tokens is None:
            return None
        spent = running.segments.num_tokens + more
        return EpisodeStop.EPISODE_TOKENS if spent >= limits.max_episode_tokens else None

    async def _sample(
        self, parts: _Parts, shown: tuple[Message, ...], *, trained: bool
    ) -> Completion:
        """One completion, appended and booked; `shown` is what the request shows."""
        spec, running, limits = parts.spec, parts.running, self._limits
        record = running.segments.record
        room = limits.max_context_tokens - record.num_tokens
        if limits.max_episode_tokens is not None:
            room = min(room, limits.max_episode_tokens - running.segments.num_tokens)
        sampling = Sampling(
            max_new_tokens=min(room, limits.max_new_tokens),
            temperature=self._temperature,
            stop_ids=parts.renderer.stop_ids,
            # one seed per turn, so that a turn can be drawn again from its record
            seed=(spec.seed + 0x9E3779B97F4A7C15 * (len(running.turns) + 1)) % 2**63,
        )
        # One session for all segments: the engine goes on from the longest common prefix.
        session = EpisodeSession(spec.id, lambda: EpisodeView(task=spec.task, messages=shown))
        started = time.perf_counter()
        completion = await self._generate(record.ids, sampling, session)
        if completion.stop_reason is StopReason.ABORT:
            raise EngineError(f"the engine aborted the completion of turn {record.turn}")
        try:
            record.append_sampled(completion, trained)
        except RecordMismatch as error:
            raise RecordMismatch(f"episode {spec.id}: {error}") from error
        running.book_sampled(completion, time.perf_counter() - started)
        return completion

    def _parse_turn(
        self, parts: _Parts, completion: Completion, tools: Sequence[ToolSchema]
    ) -> AssistantTurn:
        return self._codec.parse(
            completion.ids_T,
            completion.stop_reason,
            tools,
            thinking=parts.renderer.opens_thinking,
        )

    async def _truncate(self, parts: _Parts, stop: EpisodeStop) -> None:
        running = parts.running
        running.stop = stop
        transition = await parts.env.truncate(stop, running.last)
        if running.advancing_since is not None:
            running.book(transition)

    async def _score(self, env: ToolEnv, running: Running) -> Outcome:
        started = time.perf_counter()
        outcome = await env.ascore()
        running.score_s = time.perf_counter() - started
        return outcome

    async def _close(self, running: Running) -> None:
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


async def _within(seconds: float, work: Coroutine[Any, Any, object], what: str) -> None:
    """Wait for the environment's work, at most so long."""
    try:
        await within(seconds, work)
    except OutOfTime as error:
        message = f"the environment's {what} took longer than {seconds:g} s (rollout.setup_s)"
        raise EnvironmentFault(message) from error


def _invalid(error: Exception) -> Invalid:
    """An exception as data: whose fault it was, and what to read in a table of reasons."""
    if isinstance(error, EpisodeError):
        return Invalid(reason=said_by(error), blame=error.blame)
    reason = f"{type(error).__name__}: {said_by(error)}{place_of(error)}"
    return Invalid(reason=reason, blame="environment")
