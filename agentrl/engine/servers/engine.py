"""`ServedEngine`: one or more servers of a kind as an engine.

    generate ──▶ router ──▶ server ──▶ checked, sealed completion

What a pause cut short is continued from its tokens, so that one completion may have been sampled
under several versions of the weights; each of its tokens has its own.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl.aio import timeout_beside_pauses
from agentrl.engine.protocol import MEMORY_TAGS, Health, MemoryTag, check_request, check_version
from agentrl.engine.servers.client import Busy, Unreachable, new_rid
from agentrl.engine.servers.control import PauseMode
from agentrl.engine.servers.fleet import Fleet
from agentrl.engine.servers.process import Server
from agentrl.engine.servers.router import NoServer, ServerState
from agentrl.errors import EngineError
from agentrl.tokens.hash_chain import seal
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason
from agentrl.weights.source import WeightSource

if TYPE_CHECKING:
    from agentrl.engine.servers.weights import Transport

_UNREACHABLE_MOST = 4
_BACK_OFF_S = (0.05, 2.0)
_PROBES = (64, 64, 256, 1024, 4096)
"""Tokens of prompts that are timed; the first one warms up."""
_PROBE_S = 0.25


@dataclass(slots=True, eq=False)
class _InFlight:
    """A running request of a session."""

    abort: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    slot: ServerState | None = None
    rid: str = ""


class ServedEngine:
    """Samples with servers that are running or were started for it."""

    honours_seeds = False

    def __init__(
        self,
        servers: Sequence[Server | str],
        *,
        vocab_size: int,
        context_length: int,
        transport: "Transport | None" = None,
        pause: PauseMode = "retract",
        restarts: int = 3,
        experts: int = 0,
        timeout_s: float = 600.0,
        control_s: float = 60.0,
        deadline_s: float = 30.0,
    ) -> None:
        """Over servers or URLs; `start` it before use. Without a transport weights stay.

        `experts` is how many a mixture of experts sends a token to; completions then have them.
        A request has `timeout_s` in all, pauses left out, a call such as a pause `control_s`. A
        server that gives no sign of life for `deadline_s` is gone, and started again if it is ours.
        For `pause` and `restarts` see `ServerConfig`; a mixture's `retract` is done as `abort`.
        """
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._timeout_s = timeout_s
        self.control_s = control_s
        self.experts = experts
        if experts and pause == "retract":
            # A server that computes a sequence again records its experts anew, over those that its
            # tokens were sampled with. Sent again from here, each part has its own.
            pause = "abort"
        slots = [self.make_server_state(server) for server in servers]
        self._fleet = Fleet(
            slots, transport=transport, mode=pause, restarts=restarts, deadline_s=deadline_s
        )
        self._router = self._fleet.router
        self._flights: dict[str, _InFlight] = {}
        self._closed = False
        self._prefill_per_s: float | None = None

    def make_server_state(self, server: Server | str) -> ServerState:
        """A started server, or one that runs somewhere, with what speaks to it."""
        raise NotImplementedError

    @property
    def slots(self) -> Sequence[ServerState]:
        """The servers, with their state and counters."""
        return self._fleet.slots

    @property
    def version(self) -> int:
        """The version of the weights that are served."""
        return self._fleet.version

    @property
    def paused_s(self) -> float:
        """Seconds that the servers were paused in all, now included."""
        return self._fleet.watch.total_s

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the caches of the servers that serve hold together."""
        infos = [slot.info for slot in self.slots if slot.state == "serving"]
        return sum(info.kv_tokens * info.dp_size for info in infos if info is not None)

    @property
    def cache_fill_s(self) -> float | None:
        """Seconds that a server needs to compute a full cache; None before `measure_prefill`."""
        infos = [slot.info for slot in self.slots if slot.info is not None]
        if self._prefill_per_s is None or not infos:
            return None
        return max(info.kv_tokens for info in infos) / self._prefill_per_s

    async def measure_prefill(self) -> None:
        """Time prompts that no cache has, on an idle server: longer ones while they are quick."""
        longest = min(slot.info.longest_prompt for slot in self.slots if slot.info is not None)
        for num_tokens in _PROBES:
            if num_tokens >= min(longest, self.context_length):
                break
            ids = random.choices(range(self.vocab_size), k=num_tokens)
            started = time.perf_counter()
            await self.generate(ids, Sampling(max_new_tokens=1), EpisodeSession("a probe"))
            seconds = time.perf_counter() - started
            self._prefill_per_s = num_tokens / seconds
            if seconds > _PROBE_S:
                break

    async def start(self, *, ready_s: float, weights: WeightSource | None = None) -> None:
        """Wait for the servers, learn what they are, give them the weights as version 0.

        Raises:
            ConfigError: a server does not start, or is none that can be trained with.
        """
        await self._fleet.start(ready_s, weights)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """Sample one completion of `ids`."""
        if self._closed:
            raise EngineError("the engine was closed")
        check_request(ids, sampling, vocab_size=self.vocab_size, context_length=self.context_length)
        if session.key in self._flights:
            raise EngineError(
                f"session {session.key!r} already has a running request; await it first"
            )
        flight = self._flights[session.key] = _InFlight()
        clock: asyncio.Timeout | None = None
        try:
            async with timeout_beside_pauses(self._timeout_s, lambda: self.paused_s) as clock:
                return await self._sample_across_pauses(list(ids), sampling, session, flight)
        except TimeoutError as error:
            if clock is None or not clock.expired():
                raise
            raise EngineError(await self._explain_request_timeout(session, flight)) from error
        finally:
            flight.done.set()
            del self._flights[session.key]

    async def end_session(self, session: EpisodeSession) -> None:
        """Forget where the session was; the server drops its prefix by age."""
        self._router.forget(session.key)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Give every server the weights and serve them as `version` where they arrived.

        A server that fails gets them once more; if it fails again, it takes no requests until a
        later update reaches it. Raises EngineError if none is left.
        """
        check_version(version, self.version)
        running = self._fleet.going.is_set()
        if running:
            await self._fleet.stage(weights, version)
            await self.pause()
        try:
            await self._fleet.update(weights, version)
        finally:
            if running:
                await self.resume()

    async def pause(self) -> None:
        """Stop sampling; running requests freeze, new ones wait here."""
        await self._fleet.pause()

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._fleet.resume()

    async def release_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Let paused servers give up memory: really, where they have `--enable-memory-saver`."""
        await self._fleet.release(tags)

    async def resume_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Let them have it again; weights have no values until `update_weights`."""
        await self._fleet.take_back(tags)

    async def abort(self, session: EpisodeSession) -> None:
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
        self._fleet.going.set()
        await self._fleet.aclose()

    async def _sample_across_pauses(
        self, ids: list[int], sampling: Sampling, session: EpisodeSession, flight: _InFlight
    ) -> Completion:
        """One request, or more: after a pause that ended it, or a stop at a token not ours."""
        room = min(sampling.max_new_tokens, self.context_length - len(ids))
        parts: list[Completion] = []
        while True:
            pauses = self._fleet.pauses
            part, stopped_by = await self._sample_on_any_server(
                ids, replace(sampling, max_new_tokens=room), session, flight
            )
            parts.append(part)
            room -= len(part.ids_T)
            if part.stop_reason is StopReason.ABORT:
                done = flight.abort.is_set() or self._fleet.pauses == pauses
            else:
                done = stopped_by is None or stopped_by in sampling.stop_ids
            if done:
                return _join_completions(parts, part.stop_reason)
            if not room:
                return _join_completions(parts, StopReason.LENGTH)
            ids = [*ids, *part.ids_T.tolist()]

    async def _sample_on_any_server(
        self, ids: list[int], sampling: Sampling, session: EpisodeSession, flight: _InFlight
    ) -> tuple[Completion, int | None]:
        """Ask servers until one answers: later if it is busy, elsewhere if it is gone."""
        tries = unreachable = 0
        while True:
            await self._wait_while_paused(flight)
            if flight.abort.is_set():
                return seal([], [], [], StopReason.ABORT), None
            try:
                slot = self._router.pick(session.key)
            except NoServer:
                await asyncio.sleep(_BACK_OFF_S[1] * random.uniform(0.5, 1))
                continue
            try:
                return await self._sample_on_server(slot, ids, sampling, flight)
            except Busy:
                tries += 1
            except Unreachable as error:
                unreachable += 1
                slot.stats.failures += 1
                if slot.state == "serving" and not await slot.control.healthy(
                    self._fleet.patience_s
                ):
                    slot.fail("down", str(error))
                if unreachable >= _UNREACHABLE_MOST:
                    raise
            low, high = _BACK_OFF_S
            await asyncio.sleep(min(high, low * 2**tries) * random.uniform(0.5, 1))

    async def _sample_on_server(
        self, slot: ServerState, ids: list[int], sampling: Sampling, flight: _InFlight
    ) -> tuple[Completion, int | None]:
        flight.slot, flight.rid = slot, new_rid()
        fleet = self._fleet
        began, cache_key, adapter = fleet.version, fleet.cache_key, fleet.adapter
        slot.running += 1
        fleet.users[began] += 1
        try:
            completion, stopped_by = await slot.unless_it_fails(
                slot.client.generate(ids, sampling, flight.rid, cache_key, adapter)
            )
        except Unreachable as error:
            if self._closed:
                raise EngineError("the engine was closed") from error
            raise
        finally:
            slot.running -= 1
            fleet.users[began] -= 1
            flight.slot = None
        slot.book(len(ids), completion)
        if adapter is not None:
            completion = _replace_versions(completion, np.full_like(completion.versions_T, began))
        elif cache_key is not None and slot.info is not None and slot.info.lags:
            # Paused in place, a server keeps a token that it has sampled and books it after the
            # update: the version of each is the one before it.
            versions_T = np.concatenate([np.array([began], np.int32), completion.versions_T])
            completion = _replace_versions(completion, versions_T[:-1])
        return completion, stopped_by

    async def _wait_while_paused(self, flight: _InFlight) -> None:
        """Wait while paused, unless the request is aborted."""
        while not self._fleet.going.is_set() and not flight.abort.is_set():
            waits = [asyncio.ensure_future(e.wait()) for e in (self._fleet.going, flight.abort)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _explain_request_timeout(self, session: EpisodeSession, flight: _InFlight) -> str:
        if flight.slot is None and not any(slot.state == "serving" for slot in self.slots):
            hint = f"no server serves: {self._router.reasons()}"
            return f"session {session.key!r} got no completion within {self._timeout_s:g} s; {hint}"
        slot = flight.slot or self.slots[0]
        alive = await slot.control.healthy(2.0)
        hint = (
            "the server is alive but slow: raise engine.timeout_s or lower rollout.concurrency"
            if alive
            else f"the server at {slot.url} does not answer its health check either"
        )
        return f"session {session.key!r} got no completion within {self._timeout_s:g} s; {hint}"


def _replace_versions(completion: Completion, versions_T: NDArray[np.int32]) -> Completion:
    """The completion with other versions."""
    if (completion.versions_T == versions_T).all():
        return completion
    return seal(
        completion.ids_T,
        completion.logprobs_T,
        versions_T,
        completion.stop_reason,
        completion.channels,
        cached_tokens=completion.cached_tokens,
        prompt_channels=completion.prompt_channels,
    )


def _join_completions(parts: Sequence[Completion], reason: StopReason) -> Completion:
    """Completions that continue each other, as one."""
    if len(parts) == 1 and parts[0].stop_reason is reason:
        return parts[0]
    full = [part for part in parts if len(part.ids_T)] or parts
    return seal(
        np.concatenate([part.ids_T for part in full]),
        np.concatenate([part.logprobs_T for part in full]),
        np.concatenate([part.versions_T for part in full]),
        reason,
        {name: np.concatenate([p.channels[name] for p in full]) for name in full[0].channels},
        cached_tokens=parts[0].cached_tokens,
        prompt_channels=full[0].prompt_channels,
    )
