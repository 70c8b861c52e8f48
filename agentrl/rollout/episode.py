"""One episode: the environment and the engine take turns until something ends it.

    prompt → sample → parse → advance → observation → sample → ... → score
                                          │
                                          └ or, by the context policy, or where the template
                                            rewrites history: a new segment's prompt

All of it happens on ids: the record takes the sampled ids as they are, and only what the
environment adds is rendered.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.aio import OutOfTime, within
from agentrl.boundary import place_of, said_by
from agentrl.envs import ToolEnv, Transition
from agentrl.envs.context import (
    Ask,
    ContextView,
    Keep,
    checked_decision,
    checked_messages,
    followed_by,
)
from agentrl.envs.transition import NO_ANSWERS
from agentrl.errors import (
    EngineError,
    EnvironmentFault,
    EpisodeError,
    RecordMismatch,
    RunError,
)
from agentrl.rollout.codec import Codec
from agentrl.rollout.episode_record import EpisodeRecord
from agentrl.rollout.turn_log import TurnLog, TurnsOfEpisodes
from agentrl.schedule.events import Owner
from agentrl.tokens import Continuation
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
    Sampling,
    StopReason,
    ToolSchema,
)
from agentrl.types.episode import derive_seed, turn_seed


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
    """Most seconds of its turns, without those in which the engine was paused; None: no limit."""
    setup_s: float

    @property
    def prompt_tokens(self) -> int:
        """A first prompt of so many tokens leaves no room for a turn."""
        return min(self.max_context_tokens, self.max_episode_tokens or self.max_context_tokens)


class Plays(Protocol):
    """Plays episodes, here or elsewhere."""

    async def run(self, record: EpisodeRecord) -> Episode:
        """Play the record's episode in a fresh environment. Never raises for a failure of it.

        Raises:
            RunError: the run itself cannot go on.
        """
        ...


class MakeRunner(Protocol):
    """What `EpisodeRunner` is called with gives whoever plays."""

    def __call__(
        self,
        *,
        codec: Codec,
        generate: Generate,
        limits: EpisodeLimits,
        temperature: float,
        paused_s: Callable[[], float],
        log: TurnLog | None,
        say_owner: Callable[[str, Owner], None],
    ) -> Plays:
        """With the driver's engine, log and clock."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Runs episodes here, against one engine with one codec and one set of limits."""

    codec: Codec
    generate: Generate
    limits: EpisodeLimits
    temperature: float
    paused_s: Callable[[], float] = lambda: 0.0
    """Seconds that the engine was paused in all."""
    log: TurnsOfEpisodes | None = None
    """Takes each turn, and has those of a run that was killed."""
    say_owner: Callable[[str, Owner], None] = lambda _, __: None
    """Is told whom an episode waits for; the driver knows of the engine by itself."""

    async def run(self, record: EpisodeRecord) -> Episode:
        """Run the record's episode in a fresh environment. Never raises for a failure of it.

        Raises:
            RunError: the run itself cannot go on.
        """
        start = time.perf_counter()
        failed = await _turn_failure_into_invalid(self._make_env_and_play_within_admission(record))
        record.outcome = failed or record.outcome
        return record.finish(wall_s=time.perf_counter() - start)

    async def _make_env_and_play_within_admission(self, record: EpisodeRecord) -> None:
        """Make the environment, hold what is scarce for it, and play, score and close it."""
        env = record.job.make_env()
        async with env.admission(record.job.task):
            try:
                failed = await _turn_failure_into_invalid(self._reset_play_and_score(record, env))
            finally:
                closing = await self._keep_conversation_and_close_env(record, env)
            record.outcome = closing or failed or record.outcome

    async def _reset_play_and_score(self, record: EpisodeRecord, env: ToolEnv) -> None:
        job, limits = record.job, self.limits
        options = {"task": job.task, "split": job.split}
        await _await_environment_within(
            limits.setup_s, env.areset(seed=record.seed, options=options), "reset"
        )
        turns = _Turns(self, record, env)
        try:
            await within(limits.wall_s, turns.take(), self.paused_s)
        except OutOfTime:
            await turns.truncate(EpisodeStop.WALL_TIME)
        started = time.perf_counter()
        self.say_owner(record.id, "verifier")  # to the end: no more of it is sampled
        record.outcome = await env.ascore()
        record.score_s = time.perf_counter() - started

    async def _keep_conversation_and_close_env(
        self, record: EpisodeRecord, env: ToolEnv
    ) -> Invalid | None:
        """Keep what the record needs, then tear down."""
        if env.in_episode:
            record.messages, record.answer = env.conversation, env.answer
        try:
            return await _turn_failure_into_invalid(
                _await_environment_within(self.limits.setup_s, env.aclose(), "teardown")
            )
        except asyncio.CancelledError:  # it broke off one step; the others are still to be done
            await _turn_failure_into_invalid(
                _await_environment_within(self.limits.setup_s, env.aclose(), "teardown")
            )
            raise


class _Turns:
    """The turns of one episode, whose environment has been reset."""

    def __init__(self, runner: EpisodeRunner, record: EpisodeRecord, env: ToolEnv) -> None:
        self._runner, self._record, self._env = runner, record, env
        self._limits = runner.limits
        self._tools = env.tool_schemas
        self._renderer = runner.codec.renderer(self._tools)
        self._first = env.conversation
        prompt = runner.codec.prompt(self._renderer, self._first)
        if len(prompt) >= self._limits.prompt_tokens:
            raise EnvironmentFault(  # it has become longer in `setup`
                f"the prompt has {len(prompt)} tokens, expected less than "
                f"{self._limits.prompt_tokens}"
            )
        record.begin(prompt, self._first, len(self._first))
        self._shown = self._first
        """What the next request shows."""
        self._num_logged = 0
        """Ids of the open segment that the log has."""
        self._owes_answers = False
        """The log has a turn with side effects, and not yet what came of them."""
        # One session for all segments: the engine goes on from the longest common prefix.
        self._session = EpisodeSession(record.id, self._view_shown_messages)

    async def take(self) -> None:
        """Sample, let the environment answer and append both, until something ends the episode.

        There is room for a completion whenever a turn begins.
        """
        record = self._record
        while record.stop is None:
            turn = await self._sample_and_record_turn(self._tools, trained=True)
            transition = await self._advance_with_known_answers(turn)
            record.stop = transition.stop
            if record.stop is None:
                await self._append_observation_or_begin_segment(len(transition.messages))

    async def _advance_with_known_answers(self, turn: AssistantTurn) -> Transition:
        """Let the environment play the turn, without what a run before has called already."""
        record, log = self._record, self._runner.log
        known = log.take_answers(record.id) if log is not None else NO_ANSWERS
        record.hand_over(turn)
        transition = await self._env.advance(turn, known)
        self._book_and_log_answers(transition)
        return transition

    def _book_and_log_answers(self, transition: Transition) -> None:
        log, record = self._runner.log, self._record
        if log is not None and self._owes_answers:
            log.write_answers(record.key, record.num_turns - 1, transition.answers)
        self._owes_answers = False
        record.book(transition)

    async def truncate(self, stop: EpisodeStop) -> None:
        """End the episode by a budget."""
        self._record.stop = stop
        self._book_and_log_answers(await self._env.truncate(stop, self._record.last))

    async def _append_observation_or_begin_segment(self, num_new: int) -> None:
        """Append what the environment answered, or begin the next segment."""
        record = self._record
        shown = record.shown(self._env.conversation)
        step = self._renderer.continuation(record.tokens.ids, shown, num_new)
        policy = self._env.context
        if type(policy) is Keep:
            await self._append_continuation(step, shown)
            return
        view = ContextView(
            first=self._first,
            messages=shown,
            num_new=num_new,
            num_tokens=0 if step.forks else record.tokens.num_tokens,
            new_tokens=len(step.ids),
            max_context_tokens=self._limits.max_context_tokens,
            # a function of the task, so that a group shares what is drawn from it
            seed=derive_seed("context", record.job.task.id),
            count=lambda messages: len(self._renderer.prompt(messages)),
        )
        with user_code("the context policy"):
            decision = checked_decision(policy(view))
        if isinstance(decision, Ask):
            await self._sample_answer_to_context_policy(decision, view)
        elif decision is not None:
            await self._begin_segment_with_prompt(decision)
        else:
            await self._append_continuation(step, shown)

    async def _append_continuation(self, step: Continuation, shown: tuple[Message, ...]) -> None:
        """Go on with the segment; where the template rewrites history, with the next one."""
        self._shown = shown
        if step.forks:
            await self._begin_segment_with_prompt(shown)
        elif (
            full := self._find_budget_without_room(self._record.tokens.num_tokens, len(step.ids))
        ) is not None:
            await self.truncate(full)
        else:
            self._record.tokens.append_environment(step.ids)

    async def _sample_answer_to_context_policy(self, ask: Ask, view: ContextView) -> None:
        """Let the model answer the context policy, then begin the next segment with its answer."""
        new = followed_by(view.messages[-view.num_new :], ask.request)
        shown = (*view.messages[: -view.num_new], *new)
        ids = self._record.tokens.ids
        await self._append_continuation(self._renderer.continuation(ids, shown, len(new)), shown)
        if self._record.stop is not None:
            return
        answer = await self._sample_and_record_turn((), trained=ask.trained)
        with user_code("the context policy"):
            messages = checked_messages(ask.then(answer.text))
        await self._begin_segment_with_prompt(messages)

    async def _begin_segment_with_prompt(self, messages: Sequence[Message]) -> None:
        """Close the segment; the next one stands for the conversation so far."""
        ids = self._renderer.prompt(messages)
        if (full := self._find_budget_without_room(0, len(ids))) is not None:
            await self.truncate(full)
            return
        self._record.begin(ids, messages, len(self._env.conversation))
        self._shown, self._num_logged = tuple(messages), 0

    def _find_budget_without_room(self, before: int, more: int) -> EpisodeStop | None:
        """Which budget leaves no room for a completion behind a segment of so many tokens."""
        if before + more >= self._limits.max_context_tokens:
            return EpisodeStop.CONTEXT_TOKENS
        most = self._limits.max_episode_tokens
        if most is not None and self._record.num_tokens + more >= most:
            return EpisodeStop.EPISODE_TOKENS
        return None

    async def _sample_and_record_turn(
        self, tools: Sequence[ToolSchema], *, trained: bool
    ) -> AssistantTurn:
        """One completion, appended, booked, and written down before anything of it is done."""
        record, tokens, limits = self._record, self._record.tokens, self._limits
        room = limits.max_context_tokens - tokens.num_tokens
        if limits.max_episode_tokens is not None:
            room = min(room, limits.max_episode_tokens - record.num_tokens)
        sampling = Sampling(
            max_new_tokens=min(room, limits.max_new_tokens),
            temperature=self._runner.temperature,
            stop_ids=self._renderer.stop_ids,
            seed=turn_seed(record.seed, record.num_turns),
        )
        started = time.perf_counter()
        log, new = self._runner.log, tokens.ids[self._num_logged :]
        recorded = log.take_recorded(record.id, new) if log is not None else None
        completion = recorded or await self._runner.generate(
            list(tokens.ids), sampling, self._session
        )
        if completion.stop_reason is StopReason.ABORT:
            raise EngineError(f"the engine aborted the completion of turn {tokens.turn}")
        try:
            tokens.append_sampled(completion, trained)
        except RecordMismatch as error:
            raise RecordMismatch(f"episode {record.id}: {error}") from error
        record.book_sampled(completion, time.perf_counter() - started)
        self._num_logged = tokens.num_tokens
        turn = self._parse_completion(completion, tools)
        calls = self._env.has_side_effects(turn)
        record.has_side_effects |= calls
        if log is not None and recorded is None:
            log.write_completion(record.key, new, completion, calls=calls)
            self._owes_answers = calls
            if calls:
                await log.until_kept()
        return turn

    def _view_shown_messages(self) -> EpisodeView:
        return EpisodeView(task=self._record.job.task, messages=self._shown)

    def _parse_completion(
        self, completion: Completion, tools: Sequence[ToolSchema]
    ) -> AssistantTurn:
        return self._runner.codec.format.parse(
            self._record.tokens.ids[-len(completion.ids_T) :],
            completion.stop_reason,
            tools,
            thinking=self._renderer.opens_thinking,
        )


async def _turn_failure_into_invalid(work: Awaitable[None]) -> Invalid | None:
    """Do the work; what it raises makes the episode invalid, unless it is the run's end."""
    try:
        await work
    except RunError:
        raise
    except Exception as error:  # the one place where an episode's failure becomes data
        # An exception as data: whose fault it was, and what to read in a table of reasons.
        if isinstance(error, EpisodeError):
            return Invalid(reason=said_by(error), blame=error.blame, retryable=error.retryable)
        reason = f"{type(error).__name__}: {said_by(error)}{place_of(error)}"
        return Invalid(reason=reason, blame="environment")
    return None


async def _await_environment_within(
    seconds: float, work: Coroutine[Any, Any, object], what: str
) -> None:
    """Wait for the environment's work, at most so long."""
    try:
        await within(seconds, work)
    except OutOfTime as error:
        message = f"the environment's {what} took longer than {seconds:g} s (rollout.setup_s)"
        raise EnvironmentFault(message) from error
