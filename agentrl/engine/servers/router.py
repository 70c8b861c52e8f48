"""Which server a request goes to: its session's, else the one with least to do.

    serving ──no answer──▶ down ──answers──▶ has the weights of now ──▶ serving
                            │ ours, and dead                │ did not take them, twice
                            ▼                               ▼
                         starting                         stale ──▶ next update

A server that comes back gets the weights of now before it serves. Its sessions have moved by then.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from agentrl.engine.servers.client import Busy, ServerClient, Unreachable
from agentrl.engine.servers.control import Info, ServerControl
from agentrl.engine.servers.process import Server
from agentrl.errors import EngineError
from agentrl.types import Completion

T = TypeVar("T")
State = Literal["serving", "down", "starting", "stale"]

DYING_S = 5.0
"""How long it may take until a server of ours that answers no more is known to have ended."""


class NoServer(Busy):
    """No server serves now, but one may soon."""


@dataclass(slots=True)
class ServerStats:
    """Counters of one server."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(slots=True, eq=False)
class ServerState:
    """One server as we see it."""

    client: ServerClient
    control: ServerControl
    server: Server | None = None
    """If we started it."""
    state: State = "down"
    reason: str = "it was not asked yet"
    """Why it does not serve."""
    failed_at: float = 0.0
    """When it last ceased to serve, monotonic seconds."""
    info: Info | None = None
    missed: int = 0
    """Health checks without an answer, in a row."""
    restarts_left: int = 0
    """How often it may still be started again."""
    running: int = 0
    stats: ServerStats = field(default_factory=ServerStats)
    clocks: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """Of the requests that wait for it."""

    @property
    def url(self) -> str:
        """Where it is."""
        return self.client.url

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the {self.control.title} server at {self.url}"

    def serve(self) -> None:
        """Take requests."""
        self.state, self.reason, self.missed = "serving", "", 0

    def fail(self, state: Literal["down", "starting", "stale"], reason: str) -> None:
        """Take no requests; those that wait for an answer are let go."""
        self.state, self.reason, self.failed_at = state, reason, time.monotonic()
        now = asyncio.get_running_loop().time()
        while self.clocks:
            self.clocks.pop().reschedule(now)
        self.control.let_go()

    async def unless_it_fails(self, work: Awaitable[T]) -> T:
        """What a request to the server gives; Unreachable once that serves no more."""
        clock = asyncio.timeout(None)
        try:
            async with clock:
                self.clocks.add(clock)
                return await work
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise Unreachable(f"{self.name} is gone: {self.why}") from error
        finally:
            self.clocks.discard(clock)

    @property
    def dead(self) -> bool:
        """True if it is ours and ended."""
        return self.server is not None and not self.server.alive

    @property
    def is_stopped(self) -> bool:
        """True if it is ours and one of its processes was stopped, whoever answers for it."""
        return self.server is not None and self.server.is_stopped

    @property
    def reviving(self) -> bool:
        """True if it is started again, will be, or has just stopped answering and may be dying."""
        if self.state == "starting" or self.server is None:
            return self.state == "starting"
        if self.dead:
            return self.restarts_left > 0
        return self.state == "down" and time.monotonic() - self.failed_at < DYING_S

    @property
    def why(self) -> str:
        """Why it does not serve, in its own last words if it is ours and ended."""
        if self.server is not None and self.dead:
            return f"it ended: {self.server.last_words()}"
        return self.reason

    def book(self, num_prompt: int, completion: Completion) -> None:
        """Count an answer."""
        self.stats.requests += 1
        self.stats.prompt_tokens += num_prompt
        self.stats.cached_tokens += completion.cached_tokens
        self.stats.sampled_tokens += len(completion.ids_T)


class Router:
    """Chooses servers; sessions stay where their prefix is cached."""

    def __init__(self, slots: Sequence[ServerState]) -> None:
        self.slots = tuple(slots)
        self.title = self.slots[0].control.title
        self._of: dict[str, ServerState] = {}

    def pick(self, session: str) -> ServerState:
        """The server for the session's next request.

        Raises EngineError, with the reason of each, if none serves: Nobody if waiting may help.
        """
        slot = self._of.get(session)
        if slot is None or slot.state != "serving":
            serving = [slot for slot in self.slots if slot.state == "serving"]
            if not serving:
                hope = any(slot.reviving or slot.state == "stale" for slot in self.slots)
                kind = NoServer if hope else EngineError
                raise kind(f"no {self.title} server can be used: {self.reasons()}")
            slot = self._of[session] = min(serving, key=lambda slot: slot.running)
        return slot

    def forget(self, session: str) -> None:
        """The session is over."""
        self._of.pop(session, None)

    def reasons(self) -> str:
        """Why servers do not serve."""
        return "; ".join(f"{s.url}: {s.why}" for s in self.slots if s.state != "serving")
