"""`SglangEngine`: one or more SGLang servers as an engine.

    generate ──▶ router ──▶ server's /generate ──▶ checked, sealed completion
    update_weights ──▶ every server ──▶ a sampled tensor read back ──▶ version published

A watcher asks each server for its health; one that gives none is left out, and what waits for it is
asked of another.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from agentrl.engine.protocol import Health, WeightSource
from agentrl.engine.sglang.client import Busy, GenerateClient, Unreachable, check_request, new_rid
from agentrl.engine.sglang.control import Control, PauseMode, key_headers
from agentrl.engine.sglang.router import Router, Slot
from agentrl.engine.sglang.server import Server
from agentrl.errors import ConfigError, EngineError
from agentrl.tokens.seal import seal
from agentrl.types import Completion, Sampling, Session, StopReason

if TYPE_CHECKING:
    from agentrl.engine.sglang.weights import Transport

WATCH_S = 5.0
HEALTH_S = 10.0
MISSED_MOST = 3
"""Health checks in a row without an answer that make a server count as gone."""
_UNREACHABLE_MOST = 4
_PAUSE: PauseMode = "retract"
"""Requests go back to the server's queue with the tokens that they have, so the cache is free to be
flushed, and compute their prefix again under the new weights."""
_BACK_OFF_S = (0.05, 2.0)


@dataclass(slots=True, eq=False)
class _Flight:
    """A running request of a session."""

    abort: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    slot: Slot | None = None
    rid: str = ""


class SglangEngine:
    """Samples with SGLang servers that are running or were started for it."""

    honours_seeds = False

    def __init__(
        self,
        servers: Sequence[Server | str],
        *,
        vocab_size: int,
        context_length: int,
        transport: "Transport | None" = None,
        timeout_s: float = 600.0,
        control_s: float = 60.0,
    ) -> None:
        """Over servers or URLs; `start` it before use. Without a transport weights stay.

        A request has `timeout_s` in all, a call such as a pause `control_s`.
        """
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.version = 0
        self._transport = transport
        self._timeout_s = timeout_s
        self._control_s = control_s
        self._router = Router([self._slot(server) for server in servers])
        self._flights: dict[str, _Flight] = {}
        self._going = asyncio.Event()
        self._going.set()
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    def _slot(self, server: Server | str) -> Slot:
        url = server if isinstance(server, str) else server.url
        client = GenerateClient(url.rstrip("/"), key_headers()[0], vocab_size=self.vocab_size)
        owned = None if isinstance(server, str) else server
        return Slot(
            client=client, control=Control(client.url, timeout_s=self._control_s), server=owned
        )

    @property
    def slots(self) -> Sequence[Slot]:
        """The servers, with their state and counters."""
        return self._router.slots

    async def start(self, *, ready_s: float, weights: WeightSource | None = None) -> None:
        """Wait for the servers, learn what they are, give them the weights as version 0.

        Raises:
            ConfigError: a server does not start, or is none that can be trained with.
        """
        for slot in self.slots:
            if slot.server is not None:
                await slot.server.wait_ready(ready_s)
            try:
                slot.info = await slot.control.info()
                await slot.control.resume()  # a trainer that died may have left it paused
            except EngineError as error:
                raise ConfigError(str(error)) from error
            slot.serve()
        try:
            if weights is not None and self._transport is not None:
                await self._publish(weights, 0)
            else:
                for slot in self.slots:
                    await slot.control.set_version(0)
        except EngineError as error:
            raise ConfigError(f"the servers do not take the model: {error}") from error
        self._watcher = asyncio.create_task(self._watch())

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session
    ) -> Completion:
        """Sample one completion of `ids`."""
        if self._closed:
            raise EngineError("the engine was closed")
        check_request(ids, sampling, vocab_size=self.vocab_size, context_length=self.context_length)
        if session.key in self._flights:
            raise EngineError(
                f"session {session.key!r} already has a running request; await it first"
            )
        flight = self._flights[session.key] = _Flight()
        clock = asyncio.timeout(self._timeout_s)
        try:
            async with clock:
                return await self._complete(list(ids), sampling, session, flight)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise EngineError(await self._why_late(session, flight)) from error
        finally:
            flight.done.set()
            del self._flights[session.key]

    async def end_session(self, session: Session) -> None:
        """Forget where the session was; the server drops its prefix by age."""
        self._router.forget(session.key)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Give every server the weights and serve them as `version` where they arrived.

        A server that fails takes no requests until a later update reaches it. Raises EngineError if
        none is left.
        """
        if version <= self.version:
            raise EngineError(
                f"got weights of version {version}, expected one above {self.version}"
            )
        running = self._going.is_set()
        if running:
            await self.pause()
        try:
            await self._publish(weights, version)
        finally:
            if running:
                await self.resume()

    async def pause(self) -> None:
        """Stop sampling; running requests freeze, new ones wait here."""
        self._going.clear()
        await self._on_serving(lambda control: control.pause(_PAUSE))

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._going.set()
        await self._on_serving(lambda control: control.resume())

    async def abort(self, session: Session) -> None:
        """End the session's running request; it returns its ids so far with ABORT."""
        flight = self._flights.get(session.key)
        if flight is None:
            return
        flight.abort.set()
        while not flight.done.is_set():
            # Again and again, since a server forgets the abort of what it has not begun.
            if flight.slot is not None:
                await flight.slot.control.abort(flight.rid)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await flight.done.wait()

    async def health(self) -> Health:
        """State and counters of all servers together."""
        stats = [slot.stats for slot in self.slots]
        cached = sum(s.cached_tokens for s in stats)
        return Health(
            alive=not self._closed and any(slot.state == "serving" for slot in self.slots),
            version=self.version,
            running=sum(slot.running for slot in self.slots),
            waiting=len(self._flights) - sum(slot.running for slot in self.slots),
            prefill_tokens=sum(s.prompt_tokens for s in stats) - cached,
            cached_tokens=cached,
            sampled_tokens=sum(s.sampled_tokens for s in stats),
        )

    async def aclose(self) -> None:
        """Let go of the servers, and stop those that were started for us."""
        if self._closed:
            return
        self._closed = True
        self._going.set()
        if self._watcher is not None:
            self._watcher.cancel()
        for slot in self.slots:
            slot.fail("down", "the engine was closed")
        try:
            if self._transport is not None:
                await self._transport.aclose()
            for slot in self.slots:
                await slot.client.aclose()
                await slot.control.aclose()
        finally:
            owned = [slot.server for slot in self.slots if slot.server is not None]
            await asyncio.gather(*(asyncio.to_thread(server.stop) for server in owned))

    async def _complete(
        self, ids: list[int], sampling: Sampling, session: Session, flight: _Flight
    ) -> Completion:
        """One request, or more where the server stopped at a token that is none of ours."""
        room = min(sampling.max_tokens, self.context_length - len(ids))
        parts: list[Completion] = []
        while True:
            part, stopped_by = await self._request(
                ids, replace(sampling, max_tokens=room), session, flight
            )
            parts.append(part)
            room -= len(part.ids_T)
            if stopped_by is None or stopped_by in sampling.stop_ids:
                return _joined(parts, part.stop_reason)
            if not room:
                return _joined(parts, StopReason.LENGTH)
            ids = [*ids, *part.ids_T.tolist()]

    async def _request(
        self, ids: list[int], sampling: Sampling, session: Session, flight: _Flight
    ) -> tuple[Completion, int | None]:
        """Ask servers until one answers: later if it is busy, elsewhere if it is gone."""
        tries = unreachable = 0
        while True:
            await self._wait_going(flight)
            if flight.abort.is_set():
                return seal([], [], [], StopReason.ABORT), None
            slot = self._router.pick(session.key)
            try:
                return await self._ask(slot, ids, sampling, flight)
            except Busy:
                tries += 1
            except Unreachable as error:
                unreachable += 1
                slot.stats.failures += 1
                if slot.state == "serving" and not await slot.control.healthy(HEALTH_S):
                    slot.fail("down", str(error))
                if unreachable >= _UNREACHABLE_MOST:
                    raise
            low, high = _BACK_OFF_S
            await asyncio.sleep(min(high, low * 2**tries) * random.uniform(0.5, 1))

    async def _ask(
        self, slot: Slot, ids: list[int], sampling: Sampling, flight: _Flight
    ) -> tuple[Completion, int | None]:
        flight.slot, flight.rid = slot, new_rid()
        slot.running += 1
        clock = asyncio.timeout(None)
        try:
            async with clock:
                slot.clocks.add(clock)
                completion, stopped_by = await slot.client.generate(ids, sampling, flight.rid)
        except TimeoutError as error:
            if self._closed:
                raise EngineError("the engine was closed") from error
            raise Unreachable(f"the SGLang server at {slot.url} is gone: {slot.why}") from error
        finally:
            slot.clocks.discard(clock)
            slot.running -= 1
            flight.slot = None
        slot.book(len(ids), completion)
        return completion, stopped_by

    async def _wait_going(self, flight: _Flight) -> None:
        """Wait while paused, unless the request is aborted."""
        while not self._going.is_set() and not flight.abort.is_set():
            waits = [asyncio.ensure_future(e.wait()) for e in (self._going, flight.abort)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _why_late(self, session: Session, flight: _Flight) -> str:
        slot = flight.slot or self._router.slots[0]
        alive = await slot.control.healthy(2.0)
        hint = (
            "the server is alive but slow: raise engine.timeout_s or lower rollout.concurrency"
            if alive
            else f"the server at {slot.url} does not answer its health check either"
        )
        return f"session {session.key!r} got no completion within {self._timeout_s:g} s; {hint}"

    async def _publish(self, weights: WeightSource, version: int) -> None:
        """Send to all that answer; publish where a sampled tensor arrived as it was sent."""
        if self._transport is None:
            raise EngineError("this engine was made without a transport, so its weights stay")
        targets = [slot for slot in self.slots if await self._reachable(slot)]
        failures = await self._transport.publish(
            [(slot.control, slot.info) for slot in targets if slot.info is not None],
            weights,
            version,
        )
        for slot, failure in zip(targets, failures, strict=True):
            if failure is None:
                slot.serve()
            else:
                slot.fail("stale", f"it did not take the weights of version {version}: {failure}")
        if all(failure is not None for failure in failures):
            raise EngineError(
                f"no SGLang server took the weights of version {version}: {self._router.reasons()}"
            )
        self.version = version

    async def _reachable(self, slot: Slot) -> bool:
        if slot.state == "serving":
            return True
        if not await slot.control.healthy(2.0):
            return False
        with suppress(EngineError):
            slot.info = await slot.control.info()
            await slot.control.pause(_PAUSE)
            return True
        return False

    async def _on_serving(self, call: Callable[[Control], Awaitable[None]]) -> None:
        """Make a call to all servers that serve; one that fails serves no longer."""
        serving = [slot for slot in self.slots if slot.state == "serving"]
        results = await asyncio.gather(
            *(call(slot.control) for slot in serving), return_exceptions=True
        )
        for slot, result in zip(serving, results, strict=True):
            if isinstance(result, EngineError):
                slot.fail("down", str(result))
            elif isinstance(result, BaseException):
                raise result

    async def _watch(self) -> None:
        """Ask each server for its health, for ever."""
        while True:
            await asyncio.sleep(WATCH_S)
            await asyncio.gather(*(self._look(slot) for slot in self.slots))

    async def _look(self, slot: Slot) -> None:
        if await slot.control.healthy(HEALTH_S):
            slot.missed = 0
            if slot.state != "serving":
                await self._take_back(slot)
            return
        slot.missed += 1
        dead = slot.server is not None and not slot.server.alive
        if slot.state == "serving" and (dead or slot.missed >= MISSED_MOST):
            slot.fail("down", f"it gave no sign of life {slot.missed} times")

    async def _take_back(self, slot: Slot) -> None:
        """Let a server that answers again serve, if it has the weights of now."""
        if slot.state == "stale" or not self._going.is_set():
            return
        with suppress(EngineError):
            slot.info = await slot.control.info()
            if slot.info.weight_version != str(self.version):
                slot.fail("stale", f"it has the weights of version {slot.info.weight_version}")
                return
            await slot.control.resume()
            slot.serve()


def _joined(parts: Sequence[Completion], reason: StopReason) -> Completion:
    """Completions that continue each other, as one."""
    if len(parts) == 1 and parts[0].stop_reason is reason:
        return parts[0]
    return seal(
        np.concatenate([part.ids_T for part in parts]),
        np.concatenate([part.logprobs_T for part in parts]),
        np.concatenate([part.versions_T for part in parts]),
        reason,
        cached_tokens=parts[0].cached_tokens,
    )
