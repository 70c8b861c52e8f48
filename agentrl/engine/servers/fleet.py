"""The servers together: their weights, their pauses, their health, and a second life.

    update ──▶ every server ──▶ a sampled tensor read back ──▶ version published
    watch ──▶ no sign of life ──▶ left out ──▶ killed, if ours, and started again
                                                        ──▶ weights of now ──▶ serves

One update at a time: what comes back while the others take new weights waits for that.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agentrl.aio import PauseWatch
from agentrl.engine.protocol import MemoryStages, MemoryTag
from agentrl.engine.servers.control import PauseMode, ServerControl
from agentrl.engine.servers.router import Router, ServerState
from agentrl.errors import ConfigError, EngineError
from agentrl.weights.source import WeightSource

if TYPE_CHECKING:
    from agentrl.engine.servers.weights import Transport

MISSED_MOST = 3
"""Health checks in a row without an answer that make a server count as gone."""
REVIVE_S = 1.0
"""Before a dead server is started again; four times as long before each further try."""
_LOG = logging.getLogger(__name__)


class Fleet:
    """Servers that serve one version of the weights; whoever has another does not serve."""

    def __init__(
        self,
        slots: Sequence[ServerState],
        *,
        transport: "Transport | None",
        mode: PauseMode,
        restarts: int,
        deadline_s: float,
    ) -> None:
        """`mode` is what a pause does to running requests, see `ServerConfig.pause`.

        A server that gives no sign of life for `deadline_s` counts as gone. One of ours that ends
        is started again at most `restarts` times in a row.
        """
        self.deadline_s = deadline_s
        self.patience_s = deadline_s / (2 * MISSED_MOST)
        """How long an answer to a health check is waited for, and the next check."""
        self.router = Router(slots)
        self.version = 0
        self.going = asyncio.Event()
        """Set while servers sample."""
        self.going.set()
        self.pauses = 0
        """How often they were paused."""
        self.watch = PauseWatch()
        """How long."""
        self.users: Counter[int] = Counter()
        """Running requests by the version that they were sent under."""
        self._mode: PauseMode = mode
        self._memory = MemoryStages()
        self._restarts = restarts
        self._transport = transport
        self._weights: WeightSource | None = None
        self._old: set[int] = set()
        self._ready_s = 0.0
        self._updating = asyncio.Lock()
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def slots(self) -> Sequence[ServerState]:
        """The servers, with their state and counters."""
        return self.router.slots

    @property
    def cache_key(self) -> str | None:
        """Requests of one key reuse each other's prefixes; in place no update flushes the cache."""
        return str(self.version) if self._mode == "in_place" else None

    @property
    def adapter(self) -> str | None:
        """What requests name, if versions are adapters."""
        if self._transport is None or self._weights is None:
            return None
        return self._transport.adapter(self.version)

    async def start(self, ready_s: float, weights: WeightSource | None) -> None:
        """Wait for the servers, learn what they are, give them the weights as version 0.

        Raises ConfigError for one that does not start or cannot be trained with.
        """
        self._ready_s = ready_s
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
                await self.update(weights, 0)
            else:
                for slot in self.slots:
                    await slot.control.set_version(0)
        except EngineError as error:
            raise ConfigError(f"the servers do not take the model: {error}") from error
        for slot in self.slots:
            slot.restarts_left = self._restarts if slot.server is not None else 0
        self._watchers = [
            asyncio.create_task(self._watch_server_health(slot)) for slot in self.slots
        ]

    async def stage(self, weights: WeightSource, version: int) -> None:
        """Bring to the hosts what can be brought while the servers sample."""
        async with self._updating:
            targets = [
                (slot.control, slot.info)
                for slot in self.slots
                if slot.state == "serving" and slot.info is not None
            ]
            if self._transport is not None and targets:
                await self._transport.stage(targets, weights, version)

    async def update(self, weights: WeightSource, version: int) -> None:
        """Give the weights to all servers and serve them as `version` where they arrived.

        Raises EngineError if that is nowhere, and no server is on its way back.
        """
        self._memory.check_loadable()
        async with self._updating:
            flush = not self._watchers or self._mode != "in_place"
            while not await self._send_weights(self.slots, weights, version, flush=flush):
                if not any(slot.reviving for slot in self.slots):
                    raise EngineError(
                        f"no {self.router.title} server took the weights of version {version}: "
                        f"{self.router.reasons()}"
                    )
                await asyncio.sleep(REVIVE_S)
            self._old.add(self.version)
            self.version, self._weights = version, weights
            self._memory.loaded()
            await self._unload_old_versions()

    async def _unload_old_versions(self) -> None:
        """Let servers forget the versions before this one that no request uses."""
        for old in [old for old in self._old if old != self.version and not self.users[old]]:
            self._old.remove(old)
            for slot in self.slots:
                with suppress(EngineError):  # what is left of it does no harm
                    if self._transport is not None and slot.state == "serving":
                        await self._transport.retire(slot.control, old)

    async def pause(self) -> None:
        """Stop sampling."""
        self.going.clear()
        self.watch.pause()
        self.pauses += 1
        await self._call_serving_servers(lambda control: control.pause(self._mode))

    async def resume(self) -> None:
        """Go on."""
        self._memory.serve()
        self.going.set()
        self.watch.resume()
        await self._call_serving_servers(lambda control: control.resume())

    async def release(self, tags: Sequence[MemoryTag]) -> None:
        """Let the servers give up memory; one that would fail at it is not asked."""
        if self.going.is_set() or self._mode == "in_place":
            raise EngineError(
                "memory of servers whose requests run cannot be released; pause them first, with "
                f"{self.slots[0].control.settings}.pause set to retract or abort"
            )
        self._memory.release(tags)
        await self._call_serving_servers(lambda control: control.release(tags))

    async def take_back(self, tags: Sequence[MemoryTag]) -> None:
        """Let them have it again."""
        self._memory.resume(tags)
        await self._call_serving_servers(lambda control: control.take_back(tags))

    async def aclose(self) -> None:
        """Let go of the servers, and stop those that are ours."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
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

    async def _send_weights(
        self,
        slots: Sequence[ServerState],
        weights: WeightSource,
        version: int,
        *,
        flush: bool,
        again: bool = False,
    ) -> bool:
        """Send to all that answer, once more to those that fail; True if a server took them."""
        if self._transport is None:
            raise EngineError("this engine was made without a transport, so its weights stay")
        targets = [slot for slot in slots if await self._pause_server_if_reachable(slot)]
        if not targets:
            return False
        failures = await self._transport.publish(
            [(slot.control, slot.info) for slot in targets if slot.info is not None],
            weights,
            version,
            flush=flush,
        )
        failed: list[ServerState] = []
        for slot, failure in zip(targets, failures, strict=True):
            if failure is None:
                slot.serve()
                slot.restarts_left = self._restarts if slot.server is not None else 0
            else:
                slot.fail("stale", f"it did not take the weights of version {version}: {failure}")
                failed.append(slot)
        if failed and self._watchers and not again:
            # They may hold parts of two versions, of which only the new one is still there.
            with suppress(EngineError):
                await self._send_weights(failed, weights, version, flush=flush, again=True)
        return any(slot.state == "serving" for slot in targets)

    async def _pause_server_if_reachable(self, slot: ServerState) -> bool:
        if slot.state == "serving":
            return True
        if not await slot.control.healthy(self.patience_s):
            return False
        with suppress(EngineError):
            slot.info = await slot.control.info()
            await slot.control.pause("abort")  # nobody waits for what it samples
            return True
        return False

    async def _call_serving_servers(self, call: Callable[[ServerControl], Awaitable[None]]) -> None:
        """Make a call to all servers that serve; one that fails serves no longer."""
        serving = [slot for slot in self.slots if slot.state == "serving"]
        results = await asyncio.gather(
            *(call(slot.control) for slot in serving), return_exceptions=True
        )
        for slot, result in zip(serving, results, strict=True):
            if isinstance(result, EngineError):
                if slot.state == "serving":
                    slot.fail("down", str(result))
            elif isinstance(result, BaseException):
                raise result

    async def _watch_server_health(self, slot: ServerState) -> None:
        """Ask a server for its health, for ever."""
        while True:
            await asyncio.sleep(self.patience_s)
            if slot.dead:
                await self._restart_dead_server(slot)
            elif await slot.control.healthy(self.patience_s) and not slot.is_stopped:
                slot.missed = 0
                if slot.state in ("down", "starting"):
                    await self._return_server_to_service(slot)
            else:
                slot.missed += 1
                if slot.missed >= MISSED_MOST:
                    await self._give_up_silent_server(slot)

    async def _give_up_silent_server(self, slot: ServerState) -> None:
        """Let nobody wait for a server that hangs; end it, if it can be started again."""
        if slot.state == "serving":
            slot.fail("down", f"it gave no sign of life for {self.deadline_s:g} s")
        if slot.server is not None and slot.restarts_left:
            _LOG.warning(
                "%s gave no sign of life for %g s and is killed",
                slot.name,
                self.deadline_s,
            )
            await asyncio.to_thread(slot.server.kill)

    async def _restart_dead_server(self, slot: ServerState) -> None:
        """Start a dead server of ours again, unless that was done too often."""
        if slot.server is None or not slot.restarts_left:
            if slot.state != "down":
                slot.fail("down", "it ended")
            return
        tried = self._restarts - slot.restarts_left
        slot.restarts_left -= 1
        _LOG.warning(
            "%s ended and is started again (%d of %d): %s",
            slot.name,
            tried + 1,
            self._restarts,
            slot.server.last_words(),
        )
        slot.fail("starting", "it is started again")
        await asyncio.sleep(REVIVE_S * 4**tried)
        try:
            slot.server = slot.server.again()
            await slot.server.wait_ready(self._ready_s)
        except ConfigError as error:
            slot.fail("down", str(error))
        else:
            await self._return_server_to_service(slot)

    async def _return_server_to_service(self, slot: ServerState) -> None:
        """Let a server that answers again serve, with the weights of now."""
        async with self._updating:
            if slot.state == "serving" or not self.going.is_set():
                return  # an update came first, or will
            try:
                slot.info = await slot.control.info()
                await slot.control.pause("abort")
                if self._transport is None or self._weights is None:
                    await slot.control.set_version(self.version)
                else:
                    target = (slot.control, slot.info)
                    for failure in await self._transport.publish(
                        [target], self._weights, self.version
                    ):
                        if failure is not None:
                            raise failure
                await slot.control.resume()
            except EngineError as error:
                slot.fail("stale", str(error))
            else:
                slot.serve()
