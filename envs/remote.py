"""`isolation = "process"`: an episode that is played in a process of its own.

Inside, the same class plays by the same rules and limits. Code that cannot be stopped there, not
even by its interpreter, costs the episode a timeout and the process its life.
"""

from dataclasses import dataclass, replace
from typing import Any

from agentrl.envs.process import EnvProcess, EnvSpec, ProcessDied
from agentrl.envs.transition import Transition
from agentrl.errors import EnvironmentFault
from agentrl.tools import TextTokenizer, truncate_middle
from agentrl.types import (
    AssistantTurn,
    EpisodeStop,
    EpisodeView,
    Invalid,
    Message,
    Outcome,
    Score,
    Task,
)
from agentrl.workers import WorkerPool

_SLACK_S = 2.0
"""What a process may be late after the sum of its own limits."""
_COARSE = 8
"""Inside, tool results are cut by bytes at so many times the limit; here they are cut by tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLimits:
    """The limits that hold inside, as far as the outside has to wait for them."""

    hook_s: float
    turn_hooks_s: float
    """All hooks that a turn may call."""
    tool_s: float
    """The longest of all tools."""
    grace_s: float
    max_tool_tokens: int


class RemotePlay:
    """The near side of an episode; see `Play` for what the methods mean."""

    def __init__(
        self,
        birth: EnvSpec,
        pool: WorkerPool,
        limits: RemoteLimits,
        tokenizer: TextTokenizer | None,
        task: Task,
        messages: tuple[Message, ...],
    ) -> None:
        self._view = EpisodeView(task=task, messages=messages, stop=EpisodeStop.INVALID)
        self._birth = birth
        self._pool = pool
        self._limits = limits
        self._tokenizer = tokenizer
        self._process: EnvProcess | None = None
        self._last_turn: AssistantTurn | None = None

    @property
    def task(self) -> Task:
        """The task of the episode."""
        return self._view.task

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._view.messages

    @property
    def answer(self) -> Any:
        """The answer, once the episode has stopped."""
        return self._view.answer

    def view(self) -> EpisodeView:
        """The episode so far."""
        return self._view

    async def start(self, seed: int) -> None:
        """Start the process and begin the episode there."""
        limits = self._limits
        coarse = {"max_tool_tokens": _COARSE * limits.max_tool_tokens, "isolation": "none"}
        birth = replace(self._birth, attributes={**self._birth.attributes, **coarse})
        self._process = await EnvProcess.start(birth, self._pool, limits.hook_s)
        await self._call_remote("areset", limits.hook_s, seed=seed, options={"task": self.task})

    async def advance(self, turn: AssistantTurn) -> Transition:
        """Play one turn there; a process that does not answer in time is killed."""
        self._last_turn = turn
        limits, known = self._limits, len(self.messages)
        limit_s = len(turn.calls) * limits.tool_s + limits.turn_hooks_s + limits.grace_s
        try:
            transition: Transition = await self._call_remote("advance", limit_s, turn)
        except TimeoutError:
            return await self._give_up(EpisodeStop.TOOL_TIMEOUT, turn)
        return replace(transition, messages=self.messages[known + 1 :])

    async def truncate(self, stop: EpisodeStop, turn: AssistantTurn | None) -> Transition:
        """End the episode by a budget; a process that is still busy is killed."""
        new = None if turn is self._last_turn else turn
        try:
            transition: Transition = await self._call_remote(
                "truncate", self._limits.grace_s, stop, new
            )
        except TimeoutError:
            return await self._give_up(stop, turn)
        return transition

    async def score(self) -> Outcome:
        """The environment's own score; 0 where the policy cost the process its life."""
        if self._process is None and self._view.stop is EpisodeStop.INVALID:
            return Invalid(reason="the environment's process died", blame="environment")
        if self._process is None:
            return Score(value=0.0)
        outcome: Outcome = await self._call_remote("ascore", self._limits.hook_s)
        return outcome

    async def close(self) -> None:
        """Tear down there and end the process; a second call does nothing."""
        if self._process is None:
            return
        try:
            await self._call_remote("aclose", 2 * self._limits.hook_s)
        except TimeoutError:
            raise EnvironmentFault("teardown did not end in time; its process is gone") from None
        finally:
            await self._kill()

    async def _call_remote(
        self, method: str, limit_s: float, *args: object, **kwargs: object
    ) -> Any:
        """The value of a method there; the view comes back with it."""
        if self._process is None:
            raise EnvironmentFault("the environment's process is gone")
        try:
            reply = await self._process.ask(method, limit_s + _SLACK_S, *args, **kwargs)
        except ProcessDied:
            await self._kill()
            self._view = replace(self._view, stop=EpisodeStop.INVALID)
            raise
        if reply.view is not None:
            known = self.messages
            new = tuple(self._cut_message(message) for message in reply.view.messages[len(known) :])
            self._view = replace(reply.view, messages=(*known, *new))
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _cut_message(self, message: Message) -> Message:
        if message.role != "tool":
            return message
        text = truncate_middle(message.content, self._limits.max_tool_tokens, self._tokenizer)
        return replace(message, content=text)

    async def _give_up(self, stop: EpisodeStop, turn: AssistantTurn | None) -> Transition:
        """The process is stuck in a turn: that ends the episode."""
        await self._kill()
        new = () if turn is None else (turn.message(),)
        answer = None if turn is None else turn.text
        self._view = replace(self._view, messages=(*self.messages, *new), answer=answer, stop=stop)
        return Transition(stop=stop, num_calls=0 if turn is None else len(turn.calls))

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.kill()
