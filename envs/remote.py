"""`isolation = "process"`: an episode that is played in a process of its own.

RemotePlay ─▶ EnvProcess ── requests, one at a time ──▶ serve: calls the environment's methods
              └── one call of a worker pool, as long as the process lives ──┘

Inside, the same class plays by the same rules and limits. Code that cannot be stopped there, not
even by its interpreter, costs the episode a timeout and the process its life.
"""

import asyncio
import pickle
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from agentrl.config import Config
from agentrl.envs.declaration import Declaration, EnvRules, declaration
from agentrl.envs.transition import NO_ANSWERS, ToolAnswer, Transition
from agentrl.errors import AgentrlError, EnvironmentFault
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
from agentrl.workers.channel import is_stopped
from agentrl.workers.pickling import dumps

if TYPE_CHECKING:
    from agentrl.envs.toolenv import ToolEnv

_SLACK_S = 2.0
"""What a process may be late after the sum of its own limits."""
_COARSE = 8
"""Inside, tool results are cut by bytes at so many times the limit; here they are cut by tokens."""
_LENGTH = struct.Struct("<Q")
_PEER = struct.Struct("3i")
"""Process, user and group of who is at the other end of a socket, as the kernel says it."""
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What the process needs to make its environment."""

    env_class: "type[ToolEnv]"
    config: Config
    rules: EnvRules
    """Set on the instance."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request, and the episode after it."""

    value: Any = None
    view: EpisodeView | None = None
    error: AgentrlError | None = None


class ProcessDied(EnvironmentFault):
    """The process ended by itself: the environment crashed it, or something outside did."""


class EnvProcess:
    """The near side: start it, ask it, kill it."""

    def __init__(self, process: "asyncio.Task[None]", streams: "_Streams") -> None:
        self._process = process
        self._streams = streams
        self._pending: asyncio.Task[Reply] | None = None
        peer = streams[1].get_extra_info("socket")
        self._pid, _, _ = _PEER.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        )

    @classmethod
    async def start(cls, birth: EnvSpec, pool: WorkerPool, limit_s: float) -> "EnvProcess":
        """Start a process that holds the environment.

        Raises:
            EnvironmentFault: It did not come up within `limit_s`.
            Exception: What making the environment raised.
        """
        connected: asyncio.Future[_Streams] = asyncio.get_running_loop().create_future()
        address = f"\0agentrl-{secrets.token_hex(16)}"
        server = await asyncio.start_unix_server(
            lambda reader, writer: connected.set_result((reader, writer)), address
        )
        process = asyncio.create_task(pool.call(serve, address, birth, timeout_s=_DAY_S))
        try:
            either: set[asyncio.Future[Any]] = {process, connected}
            await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not connected.done():
                if process.done():
                    await process
                raise EnvironmentFault(
                    f"the environment's process did not come up within {limit_s:g} s"
                )
        except BaseException:
            process.cancel()
            raise
        finally:
            # Only the listening ends; `async with` would wait for the connection too.
            server.close()
        return cls(process, connected.result())

    async def ask(self, method: str, limit_s: float, *args: object, **kwargs: object) -> Reply:
        """Call a method of the environment; one that was cut off before is waited for first.

        Raises:
            TimeoutError: No answer within `limit_s`; the process goes on with it.
            ProcessDied: There is nobody to answer.
        """
        try:
            async with asyncio.timeout(limit_s):
                if self._pending is not None:
                    await asyncio.wait({self._pending})
                self._pending = asyncio.create_task(
                    self._send_and_receive_frame((method, args, kwargs))
                )
                return await asyncio.shield(self._pending)
        except (ConnectionError, EOFError) as error:
            await asyncio.wait({self._process}, timeout=_SLACK_S)
            cause = self._process.exception() if self._process.done() else None
            why = f" ({cause})" if cause is not None else ""
            raise ProcessDied(f"the environment's process died in {method}{why}") from error
        except TimeoutError:
            # Late, but not by the policy's doing: somebody stopped it.
            if is_stopped(self._pid):
                raise ProcessDied(f"the environment's process stands still in {method}") from None
            raise

    async def kill(self) -> None:
        """End the process, whatever it does; a second call does nothing."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        self._streams[1].close()
        self._process.cancel()
        await asyncio.gather(self._process, return_exceptions=True)

    async def _send_and_receive_frame(self, request: object) -> Reply:
        await _send_frame(self._streams[1], request)
        return cast("Reply", await _receive_frame(self._streams[0]))


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def serve(address: str, birth: EnvSpec) -> None:
    """What the process runs: the environment, until the other side hangs up."""
    asyncio.run(_serve_env_over_socket(address, birth))


async def _serve_env_over_socket(address: str, birth: EnvSpec) -> None:
    own_score = "score" in declaration(birth.env_class).hooks
    verifier = None if own_score else _return_zero_score
    env = birth.env_class(birth.config, verifier=verifier)
    for name, value in birth.rules:
        setattr(env, name, value)
    reader, writer = await asyncio.open_unix_connection(address)
    while True:
        try:
            method, args, kwargs = cast("tuple[str, Any, Any]", await _receive_frame(reader))
        except EOFError:
            return
        await _send_frame(writer, await _call_env_method(env, method, args, kwargs))


async def _call_env_method(env: "ToolEnv", method: str, args: Any, kwargs: Any) -> Reply:
    value, error = None, None
    try:
        value = await getattr(env, method)(*args, **kwargs)
    except AgentrlError as raised:
        error = raised
    return Reply(value, env.view() if env.conversation else None, error)


def _return_zero_score(task: Task, answer: Any) -> float:
    return 0.0


async def _send_frame(writer: asyncio.StreamWriter, value: object) -> None:
    data = dumps(value)
    writer.write(_LENGTH.pack(len(data)) + data)
    await writer.drain()


async def _receive_frame(reader: asyncio.StreamReader) -> object:
    """One frame; EOFError (asyncio's IncompleteReadError is one) at the end of the stream."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


class RemotePlay:
    """The near side of an episode; see `Play` for what the methods mean."""

    def __init__(
        self,
        env: "ToolEnv",
        declared: Declaration,
        rules: EnvRules,
        tokenizer: TextTokenizer | None,
        task: Task,
        messages: tuple[Message, ...],
    ) -> None:
        self._view = EpisodeView(task=task, messages=messages, stop=EpisodeStop.INVALID)
        coarse = {"max_tool_tokens": _COARSE * rules.max_tool_tokens, "isolation": "none"}
        inside = rules.model_copy(update=coarse)
        self._birth = EnvSpec(env_class=type(env), config=env.config, rules=inside)
        self._pool = env.services.env_pool
        self._rules = rules
        self._tokenizer = tokenizer
        # The limits that hold inside, as far as the outside has to wait for them.
        timeouts = (tool.timeout_s or rules.tool_timeout_s for tool in declared.tools.values())
        num_hooks = len(declared.hooks & {"reply", "state_key"})
        self._tool_s = max(timeouts, default=0.0)
        self._turn_s = num_hooks * rules.hook_timeout_s + rules.grace_s
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
        limit_s = self._rules.hook_timeout_s
        self._process = await EnvProcess.start(self._birth, self._pool, limit_s)
        await self._call_env_process("areset", limit_s, seed=seed, options={"task": self.task})

    async def advance(
        self, turn: AssistantTurn, known: Mapping[str, ToolAnswer] = NO_ANSWERS
    ) -> Transition:
        """Play one turn there; a process that does not answer in time is killed."""
        self._last_turn = turn
        before = len(self.messages)
        limit_s = len(turn.calls) * self._tool_s + self._turn_s
        try:
            transition: Transition = await self._call_env_process("advance", limit_s, turn, known)
        except TimeoutError:
            return await self._end_stuck_episode(EpisodeStop.TOOL_TIMEOUT, turn)
        return replace(transition, messages=self.messages[before + 1 :])

    async def truncate(self, stop: EpisodeStop, turn: AssistantTurn | None) -> Transition:
        """End the episode by a budget; a process that is still busy is killed."""
        new = None if turn is self._last_turn else turn
        try:
            transition: Transition = await self._call_env_process(
                "truncate", self._rules.grace_s, stop, new
            )
        except TimeoutError:
            return await self._end_stuck_episode(stop, turn)
        return transition

    async def score(self) -> Outcome:
        """The environment's own score; 0 where the policy cost the process its life."""
        if self._process is None and self._view.stop is EpisodeStop.INVALID:
            return Invalid(reason="the environment's process died", blame="environment")
        if self._process is None:
            return Score(value=0.0)
        outcome: Outcome = await self._call_env_process("ascore", self._rules.hook_timeout_s)
        return outcome

    async def close(self) -> None:
        """Tear down there and end the process; a second call does nothing."""
        if self._process is None:
            return
        try:
            await self._call_env_process("aclose", 2 * self._rules.hook_timeout_s)
        except TimeoutError:
            raise EnvironmentFault("teardown did not end in time; its process is gone") from None
        finally:
            await self._kill_env_process()

    async def _call_env_process(
        self, method: str, limit_s: float, *args: object, **kwargs: object
    ) -> Any:
        """The value of a method there; the view comes back with it."""
        if self._process is None:
            raise EnvironmentFault("the environment's process is gone")
        try:
            reply = await self._process.ask(method, limit_s + _SLACK_S, *args, **kwargs)
        except ProcessDied:
            await self._kill_env_process()
            self._view = replace(self._view, stop=EpisodeStop.INVALID)
            raise
        if reply.view is not None:
            known = self.messages
            new = tuple(
                self._cut_tool_message(message) for message in reply.view.messages[len(known) :]
            )
            self._view = replace(reply.view, messages=(*known, *new))
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _cut_tool_message(self, message: Message) -> Message:
        if message.role != "tool":
            return message
        text = truncate_middle(message.content, self._rules.max_tool_tokens, self._tokenizer)
        return replace(message, content=text)

    async def _end_stuck_episode(self, stop: EpisodeStop, turn: AssistantTurn | None) -> Transition:
        """The process is stuck in a turn: that ends the episode."""
        await self._kill_env_process()
        new = () if turn is None else (turn.message(),)
        answer = None if turn is None else turn.text
        self._view = replace(self._view, messages=(*self.messages, *new), answer=answer, stop=stop)
        calls = () if turn is None else turn.calls
        # Nobody knows how far they came.
        return Transition(stop=stop, num_calls=len(calls), answers={c.id: None for c in calls})

    async def _kill_env_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.kill()
