"""The rules of an episode: what a turn of the policy does.

turn with calls     -> each runs, in order        -> tool messages, or the end by `finish`
turn without calls  -> reply(text)                -> the next user message, or None: the end
cut off (length)    -> nothing runs               -> the end
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gymnasium.error import ResetNeeded

from agentrl.envs.declaration import Declaration, EnvRules
from agentrl.envs.hooks import World
from agentrl.envs.scoring import own_score
from agentrl.envs.transition import NO_ANSWERS, ToolAnswer, Transition
from agentrl.errors import EnvironmentFault, EpisodeError, ToolError
from agentrl.tools import (
    TextTokenizer,
    ToolHangs,
    ToolSpec,
    result_text,
    run_tool,
    truncate_middle,
)
from agentrl.types import (
    CUT_OFF,
    AssistantTurn,
    CallError,
    CallErrorReason,
    EpisodeStop,
    EpisodeView,
    Message,
    Outcome,
    StopReason,
    Task,
    ToolCall,
)
from agentrl.types.episode import require_utf8

if TYPE_CHECKING:
    from agentrl.envs.toolenv import ToolEnv


@dataclass(slots=True)
class _Tally:
    """What happened in the running turn."""

    # Made in each turn: `list[str]()` takes thirty times as long as `[]`.

    messages: list[Message] = field(default_factory=lambda: [])
    errors: list[str] = field(default_factory=lambda: [])
    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: {})
    num_calls: int = 0
    state_key: str | None = None
    finish: tuple[Any] | None = None
    known: Mapping[str, ToolAnswer] = field(default_factory=lambda: NO_ANSWERS)
    """By call id, what calls that are not to be repeated came to before."""
    answers: dict[str, ToolAnswer | None] = field(default_factory=lambda: {})
    """The same of this turn, for another time; None while a call runs."""


class Play:
    """One episode from its first messages to its stop."""

    def __init__(
        self,
        env: "ToolEnv",
        declared: Declaration,
        rules: EnvRules,
        tokenizer: TextTokenizer | None,
        task: Task,
        messages: tuple[Message, ...],
    ) -> None:
        self.world = World(type(env).__name__, env.services.census, rules)
        self.task = task
        self.messages = list(messages)
        self.stop: EpisodeStop | None = EpisodeStop.INVALID
        """None while the episode runs; INVALID until it begins, too."""
        self._env = env
        self._declared = declared
        self._rules = rules
        self._tokenizer = tokenizer
        self._num_turns = 0
        self._last_turn: AssistantTurn | None = None
        self._finished: tuple[Any] | None = None
        self._errors: list[str] = []
        self._tally: _Tally | None = None

    async def start(self, seed: int) -> None:
        """Set up the world; then turns may be played. The environment has taken the seed itself."""
        if "teardown" in self._declared.hooks:
            self.world.owe_teardown(self._env.teardown)
        if "setup" in self._declared.hooks:
            await self.world.call_hook("setup", self._env.setup)
        self.stop = None

    @property
    def answer(self) -> Any:
        """What `finish` got, else the text of the last turn."""
        if self._finished is not None:
            return self._finished[0]
        return None if self._last_turn is None else self._last_turn.text

    def view(self) -> EpisodeView:
        """The episode so far; the answer is there when it has stopped."""
        return EpisodeView(
            task=self.task,
            messages=tuple(self.messages),
            answer=None if self.stop is None else self.answer,
            stop=self.stop,
            call_errors=tuple(self._errors),
        )

    def finish(self, answer: Any) -> None:
        """The environment ends the episode after the running call."""
        self._require_open_tally("finish").finish = (answer,)

    def reward(self, value: float, part: str) -> None:
        """Add to the reward of the running turn."""
        tally = self._require_open_tally("reward")
        require_utf8(part, "the name of a reward's part")
        if not math.isfinite(tally.reward + value):
            raise ValueError(
                f"reward is {value} after {tally.reward} in this turn, expected a finite sum"
            )
        tally.reward += value
        if part:
            tally.parts[part] = tally.parts.get(part, 0.0) + value

    async def truncate(self, stop: EpisodeStop, turn: AssistantTurn | None) -> Transition:
        """End the episode by a budget.

        A turn that was not played is recorded and nothing of it runs: each of its calls failed. Of
        one that was cut off while it was played, what has happened stays.
        """
        if self.stop is not None and self._tally is None:
            raise ResetNeeded(f"the episode has stopped ({self.stop}); call reset first")
        tally = self._tally or _Tally()
        if turn is not None and turn is not self._last_turn:
            tally.num_calls = len(turn.calls)
            tally.errors += [
                call.reason if isinstance(call, CallError) else CUT_OFF for call in turn.calls
            ]
            await self._begin_turn(turn, tally)
        return self._end_turn_with_transition(tally, stop)

    async def score(self) -> Outcome:
        """The environment's own score of its final state."""
        return await own_score(self.world, self._env.score, self.answer)

    async def close(self) -> None:
        """Tear down the world; a second call does nothing."""
        await self.world.close()

    async def advance(
        self, turn: AssistantTurn, known: Mapping[str, ToolAnswer] = NO_ANSWERS
    ) -> Transition:
        """Play one turn; calls with a known answer are not made."""
        if turn.stop_reason is StopReason.ABORT:
            raise ValueError("an aborted turn cannot be played; call truncate(stop, turn)")
        if self.stop is not None:
            raise ResetNeeded(f"the episode has stopped ({self.stop}); call reset first")
        if turn.stop_reason is StopReason.LENGTH:
            return await self.truncate(EpisodeStop.TURN_TOKENS, turn)
        tally = _Tally(num_calls=len(turn.calls), known=known)
        await self._begin_turn(turn, tally)
        try:
            stop = await self._run_calls_or_reply(turn, tally)
        except EpisodeError:
            self._tally = None
            raise
        return self._end_turn_with_transition(tally, stop)

    async def _begin_turn(self, turn: AssistantTurn, tally: _Tally) -> None:
        """Record a turn, and the state that it begins in; nothing of it has run."""
        # Until the turn has come to its end: what cuts it off leaves an episode that cannot go on.
        self.stop = EpisodeStop.INVALID
        self._tally = tally
        self._num_turns += 1
        self.messages.append(turn.message())
        self._last_turn = turn
        if "state_key" not in self._declared.hooks:
            return
        try:
            key = await self.world.call_hook("state_key", self._env.state_key)
            if not isinstance(key, str | None):
                raise EnvironmentFault(
                    f"state_key returned a {type(key).__name__}, expected str or None"
                )
            check_text("state_key's text", key or "")
        except EpisodeError:
            self._tally = None
            raise
        tally.state_key = key

    async def _run_calls_or_reply(self, turn: AssistantTurn, tally: _Tally) -> EpisodeStop | None:
        stop = await (
            self._run_tool_calls_until_stop(turn.calls, tally)
            if turn.calls
            else self._run_reply_hook(turn.text, tally)
        )
        left = self._rules.max_turns - self._num_turns
        if stop is None and left <= 0:
            return EpisodeStop.MAX_TURNS
        if stop is None and left <= self._rules.warn_turns:
            # Let the last tool result say that the turns are running out.
            last = tally.messages[-1]
            if last.role == "tool":
                turns = "turn is" if left == 1 else "turns are"
                tally.messages[-1] = replace(
                    last, content=f"{last.content}\n[{left} {turns} left.]"
                )
        return stop

    def _end_turn_with_transition(self, tally: _Tally, stop: EpisodeStop | None) -> Transition:
        """Close the turn's books."""
        self._tally = None
        self.stop = stop
        self.messages += tally.messages
        self._errors += tally.errors
        return Transition(
            messages=tuple(tally.messages),
            reward=tally.reward,
            parts=tally.parts,
            state_key=tally.state_key,
            stop=stop,
            num_calls=tally.num_calls,
            call_errors=tuple(tally.errors),
            answers=tally.answers,
        )

    def _require_open_tally(self, what: str) -> _Tally:
        if self._tally is None:
            raise RuntimeError(
                f"{what} was called outside of a turn; it belongs in a tool or reply"
            )
        return self._tally

    async def _run_reply_hook(self, text: str, tally: _Tally) -> EpisodeStop | None:
        """A turn without calls: the next user message, or the end."""
        reply: object = None
        if "reply" in self._declared.hooks:
            reply = await self.world.call_hook("reply", partial(self._env.reply, text))
        self._finished = tally.finish
        if tally.finish is not None:
            return EpisodeStop.FINISHED
        if reply is None:
            return EpisodeStop.ANSWERED
        if not isinstance(reply, str):
            raise EnvironmentFault(f"reply returned a {type(reply).__name__}, expected str or None")
        check_text("reply's text", reply)
        tally.messages.append(Message(role="user", content=reply))
        return None

    async def _run_tool_calls_until_stop(
        self, calls: tuple[ToolCall | CallError, ...], tally: _Tally
    ) -> EpisodeStop | None:
        """The calls of a turn in order, until one ends the episode."""
        for call in calls:
            if isinstance(call, CallError):
                self._append_cut_tool_result(
                    call, f"Error: {call.message}", tally, error=call.reason
                )
            elif (stop := await self._run_tool_call(call, tally)) is not None:
                return stop
        return None

    async def _run_tool_call(self, call: ToolCall, tally: _Tally) -> EpisodeStop | None:
        spec = self._declared.tools.get(call.name)
        if spec is None or not spec.side_effects:
            return await self._make_tool_call(call, tally)
        if (known := tally.known.get(call.id)) is not None:
            return self._repeat_known_answer(call, known, tally)
        reward, parts, num_errors = tally.reward, dict(tally.parts), len(tally.errors)
        tally.answers[call.id] = None
        stop = await self._make_tool_call(call, tally)
        tally.answers[call.id] = ToolAnswer(
            text=tally.messages[-1].content,
            error=tally.errors[-1] if len(tally.errors) > num_errors else None,
            reward=tally.reward - reward,
            parts={name: x - parts.get(name, 0.0) for name, x in tally.parts.items()},
            finish=tally.finish,
            stop=stop,
        )
        return stop

    def _repeat_known_answer(
        self, call: ToolCall, known: ToolAnswer, tally: _Tally
    ) -> EpisodeStop | None:
        self._append_cut_tool_result(call, known.text, tally, error=known.error)
        tally.answers[call.id] = known
        tally.reward += known.reward
        for part, value in known.parts.items():
            tally.parts[part] = tally.parts.get(part, 0.0) + value
        self._finished = tally.finish = known.finish
        return known.stop

    async def _make_tool_call(self, call: ToolCall, tally: _Tally) -> EpisodeStop | None:
        try:
            spec, arguments = self._find_tool_and_bind_arguments(call)
            value = await run_tool(
                spec,
                self._env,
                arguments,
                timeout_s=self._rules.tool_timeout_s,
                caller=self.world,
                pool=lambda: self._env.services.tool_pool,
            )
            text = result_text(call.name, value)
        except ToolHangs:
            self._append_cut_tool_result(call, "Error: timed out", tally, error="tool_timeout")
            await self.world.settle()
            return EpisodeStop.TOOL_TIMEOUT
        except ToolError as error:
            self._append_cut_tool_result(call, f"Error: {error}", tally, error=error.recorded_as)
            tally.finish = None
            return None
        self._append_cut_tool_result(call, text, tally)
        self._finished = tally.finish
        return None if tally.finish is None else EpisodeStop.FINISHED

    def _find_tool_and_bind_arguments(self, call: ToolCall) -> tuple[ToolSpec, dict[str, object]]:
        """The tool that a call names, and what it is called with."""
        tools = self._declared.tools
        spec = tools.get(call.name)
        if spec is None:
            known = ", ".join(tools) or "none"
            raise _CannotRun(
                CallErrorReason.UNKNOWN_TOOL,
                f"there is no tool {call.name}; the tools are: {known}",
            )
        try:
            return spec, spec.arguments.bind(call.arguments)
        except ToolError as error:
            raise _CannotRun(CallErrorReason.BAD_ARGUMENTS, str(error)) from error

    def _append_cut_tool_result(
        self, call: ToolCall | CallError, text: str, tally: _Tally, *, error: str | None = None
    ) -> None:
        """The tool message of one call, within the limit of tokens."""
        if error is not None:
            tally.errors.append(error)
        text = truncate_middle(text, self._rules.max_tool_tokens, self._tokenizer)
        message = Message(role="tool", content=text, tool_call_id=call.id, name=call.name or "")
        tally.messages.append(message)


class _CannotRun(ToolError):
    """The call does not fit the tools."""

    def __init__(self, reason: CallErrorReason, message: str):
        super().__init__(message)
        self.recorded_as = reason


def check_text(what: str, text: str) -> None:
    """Raise EnvironmentFault if the text holds half of a surrogate pair: no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFault(
            f"{what} holds half of a surrogate pair (U+{ord(text[error.start]):04X}); decode or "
            "clean the text"
        ) from None
