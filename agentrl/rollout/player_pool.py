"""The driver's side of players: which one plays an episode, and what becomes of it if that dies.

    Begin, Answer ─▶ player 0 ─▶ Asks, TurnLine, Ended ─▶ engine, turn log, group
                  ─▶ player 1 ends

Episodes of a player that ends have no score and are tried again, by the rules for such episodes;
another process takes its place.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agentrl.errors import EnvironmentFault, EpisodeError, RunError
from agentrl.rollout.codec import Codec
from agentrl.rollout.episode import EpisodeLimits, Generate
from agentrl.rollout.episode_record import EpisodeRecord
from agentrl.rollout.player import (
    Answer,
    Asks,
    AsksNoMore,
    Begin,
    Ended,
    GiveUp,
    Home,
    PausedFor,
    PickledEnvs,
    TurnLine,
    WaitsFor,
    Wire,
    play_for_driver,
)
from agentrl.rollout.turn_log import TurnLog
from agentrl.schedule.events import Owner
from agentrl.types import Completion, Episode, EpisodeSession, Invalid
from agentrl.workers.calls import WorkerDied
from agentrl.workers.executors import WorkerCall, Workers
from agentrl.workers.pickling import CANNOT_PICKLE, dumps

_LOG = logging.getLogger(__name__)

_START_S: Final = 120.0
"""So long all players may take until they are there."""
_END_S: Final = 10.0
"""So long they may take to tidy up."""
_PAUSE_LOOK_S: Final = 0.1
_STARTS: Final = 3
"""In a row, a player may end without having come up."""


class PlayerWorkers(Workers, Protocol):
    """Workers, one of which can be replaced."""

    @property
    def home(self) -> str:
        """The address by which they reach this process."""
        ...

    async def replace(self, number: int) -> None:
        """Start another one in the place of one that is gone."""
        ...


class PlayerLost(EnvironmentFault):
    """The process in which the episode was played ended."""


@dataclass(slots=True, eq=False)
class _Playing:
    """An episode at a player."""

    runner: "RemoteRunner"
    record: EpisodeRecord
    ended: "asyncio.Future[Episode | None]"
    sampling: "asyncio.Task[Completion] | None" = None

    def stop_sampling(self) -> None:
        if self.sampling is not None:
            self.sampling.cancel()

    def fail(self, error: BaseException) -> None:
        self.stop_sampling()
        if not self.ended.done():
            self.ended.set_exception(error)


class _Link:
    """One player that is there."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.episodes: dict[int, _Playing] = {}
        self.isolation: Sequence[tuple[str, ...]] = ()
        self.paused_s = 0.0

    def do(self, message: object) -> None:
        """What the player says; of episodes that have ended nothing is heard."""
        playing = self.episodes.get(getattr(message, "number", -1))
        if playing is None:
            return
        try:
            self._do(message, playing)
        except RunError as error:  # the log could not be written
            playing.fail(error)

    def _do(self, message: object, playing: _Playing) -> None:
        runner, record = playing.runner, playing.record
        match message:
            case Asks():
                self._sample(message, playing)
            case AsksNoMore():
                playing.stop_sampling()
            case WaitsFor(_, owner):
                runner.say_owner(record.id, owner)
            case TurnLine(_, line):
                record.has_side_effects |= bool(line.get("calls"))
                if runner.log is not None:
                    runner.log.append(record.id, record.key.group, line)
            case Ended(_, episode, error, isolation):
                self.isolation = isolation
                if error is not None:
                    playing.fail(error)
                elif not playing.ended.done():
                    playing.ended.set_result(episode)
            case _:
                raise AssertionError(message)

    def _sample(self, asked: Asks, playing: _Playing) -> None:
        if asked.ids is None or asked.sampling is None:
            self.wire.send(Answer(asked.request, None, None))
            return
        session = EpisodeSession(playing.record.id)
        sampling = playing.runner.generate(asked.ids.tolist(), asked.sampling, session)
        playing.sampling = asyncio.create_task(sampling)
        playing.sampling.add_done_callback(lambda done: self._answer(playing, asked.request, done))

    def _answer(self, playing: _Playing, request: int, done: "asyncio.Task[Completion]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, Exception) and not isinstance(error, RunError):
            try:
                self.wire.send(Answer(request, None, error))
            except CANNOT_PICKLE:
                self.wire.send(Answer(request, None, EpisodeError(str(error))))
        elif error is not None:
            playing.fail(error)
        else:
            self.wire.send(Answer(request, done.result(), None))


class PlayerPool:
    """Players that are there, or come back."""

    def __init__(
        self, workers: PlayerWorkers, *, codec: Codec, envs: PickledEnvs, deadline_s: float
    ) -> None:
        """Take over the workers, which are ended with the pool; `start` it before use."""
        self._workers, self._codec, self._envs = workers, codec, envs
        self._deadline_s = deadline_s
        self._secret = secrets.token_bytes(32)
        self._links: dict[int, _Link] = {}
        self._over: dict[int, asyncio.Event] = {}
        """Of each worker: the connection has ended."""
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._telling: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._paused_s: Callable[[], float] = lambda: 0.0
        self._is_closed = False
        self.numbers = itertools.count()
        """Of episodes."""

    @property
    def isolation(self) -> list[tuple[str, ...]]:
        """The backends of the sandboxes that players have used, and what each held."""
        return sorted({held for link in self._links.values() for held in link.isolation})

    @property
    def places(self) -> list[str]:
        """Which process each player is, and where."""
        return [f"player {n}: {self._workers.describe(n)}" for n in range(len(self._workers))]

    async def start(self) -> None:
        """Wait until all players are there.

        Raises:
            ConfigError: an environment cannot be played on one of them.
            RunError: one does not come up.
        """
        host = self._workers.home
        self._server = await asyncio.start_server(self._accept, host, 0)
        home = Home(
            host=host,
            port=self._server.sockets[0].getsockname()[1],
            secret=self._secret,
            codec=dumps(self._codec),
            envs=self._envs,
            deadline_s=self._deadline_s,
        )
        self._call = WorkerCall(play_for_driver, (home,))
        for number in range(len(self._workers)):
            self._keepers[number] = asyncio.create_task(self._keep(number))
        self._telling = asyncio.create_task(self._tell_pauses())
        try:
            async with asyncio.timeout(_START_S):
                while len(self._links) < len(self._workers):
                    for keeper in self._keepers.values():
                        if keeper.done():
                            keeper.result()
                    await self._wait_for_change()
        except TimeoutError as error:
            missing = sorted(self._keepers.keys() - self._links.keys())
            raise RunError(
                f"player {missing[0]} ({self._workers.describe(missing[0])}) cannot reach this "
                f"process at {home.host}:{home.port}, or has not come up within {_START_S:g} s"
            ) from error

    def make_runner(
        self,
        *,
        codec: Codec,
        generate: Generate,
        limits: EpisodeLimits,
        temperature: float,
        paused_s: Callable[[], float],
        log: TurnLog | None,
        say_owner: Callable[[str, Owner], None],
    ) -> "RemoteRunner":
        """What a driver plays with; `codec` is the one that the players have."""
        self._paused_s = paused_s
        return RemoteRunner(
            pool=self,
            generate=generate,
            limits=limits,
            temperature=temperature,
            log=log,
            say_owner=say_owner,
        )

    async def pick(self) -> _Link:
        """The player with fewest episodes; the next one that comes, where there is none.

        Raises:
            RunError: none will.
        """
        while not self._links:
            if all(keeper.done() for keeper in self._keepers.values()):
                raise RunError(
                    "no player is left: none could be started again after it had ended; what each "
                    "said stands above"
                )
            await self._wait_for_change()
        return min(self._links.values(), key=lambda link: len(link.episodes))

    async def aclose(self) -> None:
        """End the players, which tidy up first; a second call does nothing."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.wire.close()
        if self._telling is not None:
            self._telling.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers.values(), timeout=_END_S)
        left = [*self._keepers.values(), *self._connections]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._keepers.clear()
        self._workers.close()

    async def _keep(self, number: int) -> None:
        """Let a worker play, and another one in its place when it ends."""
        starts = 0
        while True:
            over = self._over[number] = asyncio.Event()
            try:
                await self._play_until_end(number, over)
                reason = "it ended"
            except (WorkerDied, OSError, EOFError) as error:
                reason = str(error)
            finally:
                link = self._links.pop(number, None)
            if self._is_closed:
                return
            starts = starts + 1 if link is None else 0
            lost = [*link.episodes.values()] if link is not None else []
            where = f"player {number} ({self._workers.describe(number)})"
            for playing in lost:
                playing.fail(PlayerLost(f"{where} ended: {reason}"))
            _LOG.warning("%s ended: %s; %d episodes were there", where, reason, len(lost))
            if starts == _STARTS:
                raise RunError(f"{where} ended {_STARTS} times before it had come up: {reason}")
            await self._workers.replace(number)

    async def _play_until_end(self, number: int, over: asyncio.Event) -> None:
        """Raises what ended the worker, which tells more than the end of its connection."""
        playing = asyncio.create_task(self._workers.exchange(number, self._call))
        ends = asyncio.create_task(over.wait())
        try:
            await asyncio.wait([playing, ends], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                await asyncio.wait([playing], timeout=2 * self._deadline_s)
            if not playing.done():
                raise WorkerDied("its connection broke")
            playing.result()
        finally:
            ends.cancel()
            playing.cancel()
            self._change()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve_connection(Wire(reader, writer)))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve_connection(self, wire: Wire) -> None:
        """From its beginning to its end."""
        number: int | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                number = await wire.receive_greeting(self._secret)
            if number is None or number not in self._over:
                return
            link = self._links[number] = _Link(wire)
            self._change()
            while True:
                link.do(await wire.receive())
        except (EOFError, OSError, TimeoutError):
            pass
        finally:
            wire.close()
            if number is not None:
                self._over[number].set()

    async def _tell_pauses(self) -> None:
        while True:
            paused_s = self._paused_s()
            for link in self._links.values():
                if link.paused_s != paused_s:
                    link.paused_s = paused_s
                    link.wire.send(PausedFor(paused_s))
            await asyncio.sleep(_PAUSE_LOOK_S)

    def _change(self) -> None:
        self._changed.set()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRunner:
    """Plays episodes at the players of a pool, as `EpisodeRunner` does here."""

    pool: PlayerPool
    generate: Generate
    limits: EpisodeLimits
    temperature: float
    log: TurnLog | None
    say_owner: Callable[[str, Owner], None]

    async def run(self, record: EpisodeRecord) -> Episode:
        """Play the record's episode there; of one that is given up nothing comes back."""
        start = time.perf_counter()
        link = await self.pool.pick()
        number, job = next(self.pool.numbers), record.job
        begin = Begin(
            number=number,
            key=record.key,
            place=job.place,
            task=job.task,
            split=job.split,
            limits=self.limits,
            temperature=self.temperature,
            recorded=self.log.hand_over(record.id) if self.log is not None else None,
        )
        ended = asyncio.get_running_loop().create_future()
        playing = link.episodes[number] = _Playing(self, record, ended)
        try:
            try:
                link.wire.send(begin)
            except CANNOT_PICKLE as error:
                raise EnvironmentFault(f"its task cannot be pickled ({error})") from error
            episode = await self._wait_for_end(link, number, playing)
            assert episode is not None
            return episode
        except EpisodeError as error:
            record.outcome = Invalid(
                reason=str(error), blame=error.blame, retryable=error.retryable
            )
            return record.finish(wall_s=time.perf_counter() - start)
        finally:
            del link.episodes[number]

    async def _wait_for_end(self, link: _Link, number: int, playing: _Playing) -> Episode | None:
        try:
            return await asyncio.shield(playing.ended)
        except asyncio.CancelledError:
            playing.stop_sampling()
            link.wire.send(GiveUp(number))
            await asyncio.wait([playing.ended])  # it tears its environment down
            if not playing.ended.cancelled():
                playing.ended.exception()  # so that asyncio does not report it
            raise
