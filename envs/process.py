"""A process of its own for one environment.

EnvProcess ── requests, one at a time ──> serve: calls the environment's methods
└── one call of a worker pool, as long as the process lives ──┘
"""

import asyncio
import pickle
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from agentrl.config import Config
from agentrl.envs.declaration import declaration
from agentrl.errors import AgentrlError, EnvironmentFault
from agentrl.types import EpisodeView, Task
from agentrl.workers import WorkerPool
from agentrl.workers.pickling import dumps

if TYPE_CHECKING:
    from agentrl.envs.toolenv import ToolEnv

_LENGTH = struct.Struct("<Q")
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What the process needs to make its environment."""

    env_class: "type[ToolEnv]"
    config: Config
    attributes: Mapping[str, Any]
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
        async with asyncio.timeout(limit_s):
            if self._pending is not None:
                await asyncio.wait({self._pending})
            self._pending = asyncio.create_task(self._exchange_frames((method, args, kwargs)))
            try:
                return await asyncio.shield(self._pending)
            except (ConnectionError, EOFError) as error:
                raise ProcessDied(f"the environment's process died in {method}") from error

    async def kill(self) -> None:
        """End the process, whatever it does; a second call does nothing."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        self._streams[1].close()
        self._process.cancel()
        await asyncio.gather(self._process, return_exceptions=True)

    async def _exchange_frames(self, request: object) -> Reply:
        await _send(self._streams[1], request)
        return cast("Reply", await _receive_frame(self._streams[0]))


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def serve(address: str, birth: EnvSpec) -> None:
    """What the process runs: the environment, until the other side hangs up."""
    asyncio.run(_serve(address, birth))


async def _serve(address: str, birth: EnvSpec) -> None:
    own_score = "score" in declaration(birth.env_class).hooks
    verifier = None if own_score else _scored_outside
    env = birth.env_class(birth.config, verifier=verifier)
    for name, value in birth.attributes.items():
        setattr(env, name, value)
    reader, writer = await asyncio.open_unix_connection(address)
    while True:
        try:
            method, args, kwargs = cast("tuple[str, Any, Any]", await _receive_frame(reader))
        except EOFError:
            return
        await _send(writer, await _answer_request(env, method, args, kwargs))


async def _answer_request(env: "ToolEnv", method: str, args: Any, kwargs: Any) -> Reply:
    value, error = None, None
    try:
        value = await getattr(env, method)(*args, **kwargs)
    except AgentrlError as raised:
        error = raised
    return Reply(value, env.view() if env.conversation else None, error)


def _scored_outside(task: Task, answer: Any) -> float:
    return 0.0


async def _send(writer: asyncio.StreamWriter, value: object) -> None:
    data = dumps(value)
    writer.write(_LENGTH.pack(len(data)) + data)
    await writer.drain()


async def _receive_frame(reader: asyncio.StreamReader) -> object:
    """One frame; EOFError (asyncio's IncompleteReadError is one) at the end of the stream."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
