"""A player: a process anywhere that plays whole episodes, with their tools and sandboxes.

    driver, has the engine                 player, one of some, each with many episodes
    RemoteRunner  ── Begin ──────────────▶ EpisodeRunner, environment
    engine        ◀─ Asks: ids ───────────
                  ── Answer: completion ─▶ parsed, played, recorded
    turn log      ◀─ TurnLine ────────────
                  ◀─ Ended: the episode ──

All of it goes over one connection, which the player opens. When that ends, so does the player.
"""

import asyncio
import hmac
import itertools
import pickle
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentrl.aio import LoopWatch, run
from agentrl.boundary import said_by
from agentrl.config import Config
from agentrl.envs import EnvServices, ToolEnv
from agentrl.envs.context import ContextPolicy
from agentrl.errors import AgentrlError, ConfigError, EnvironmentFault
from agentrl.rollout.codec import Codec
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner
from agentrl.rollout.episode_record import EpisodeRecord, GroupJob
from agentrl.rollout.turn_log import RecordedTurns, TurnsOfEpisodes
from agentrl.sandboxes import SandboxOptions, check_backend
from agentrl.schedule.events import Owner
from agentrl.tokens import Tokenizer
from agentrl.tools import user_code
from agentrl.types import Completion, Episode, EpisodeKey, EpisodeSession, Sampling, Task
from agentrl.verifiers import Verifier
from agentrl.workers.executors import Seat
from agentrl.workers.pickling import CANNOT_PICKLE, dumps

_LENGTH: Final = struct.Struct("<Q")
_HELLO: Final = struct.Struct("<32sI")
"""The secret of the pool, and the player's number; nothing is unpickled before it is right."""
_CONNECT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMaker:
    """What an environment is made of, in any process."""

    name: str
    env_class: type[ToolEnv]
    config: Config
    verifier: Verifier | None
    max_turns: int | None
    context: ContextPolicy | None
    """None: the environment's own."""

    def make_prototype(self) -> ToolEnv:
        """An instance that plays no episode."""
        with user_code(f"making env {self.name}"):
            return self.env_class(self.config, verifier=self.verifier)

    def make_like(
        self, prototype: ToolEnv, services: EnvServices, tokenizer: Tokenizer | None
    ) -> ToolEnv:
        """A fresh instance."""
        env = self.env_class(
            self.config, verifier=self.verifier, tokenizer=tokenizer, services=services
        )
        env.keep_declaration(prototype)
        if self.max_turns is not None:
            env.max_turns = self.max_turns
        if self.context is not None:
            env.context = self.context
        return env


PickledEnvs = Sequence[tuple[str, bytes]]
"""Name and maker of each environment."""


def pickle_envs(makers: Sequence[EnvMaker]) -> PickledEnvs:
    """As they travel.

    Raises:
        ConfigError: one cannot.
    """
    pickled: list[tuple[str, bytes]] = []
    for maker in makers:
        try:
            pickled.append((maker.name, dumps(maker)))
        except CANNOT_PICKLE as error:
            raise ConfigError(
                f"env {maker.name} cannot be sent to the players, since its class, parameters, "
                f"verifier or context policy cannot be pickled ({error}); keep open files, locks "
                "and connections out of them, or set ray.players to 0"
            ) from error
    return pickled


def open_envs(pickled: PickledEnvs, host: str) -> list[tuple[EnvMaker, ToolEnv]]:
    """Each with an instance that plays no episode, in the process that will play them.

    Raises:
        ConfigError: one cannot be imported, made or sandboxed on this machine, called `host`.
    """
    opened: list[tuple[EnvMaker, ToolEnv]] = []
    for name, maker_bytes in pickled:
        try:
            maker: EnvMaker = pickle.loads(maker_bytes)
            prototype = maker.make_prototype()
            sandbox: object = getattr(maker.config, "sandbox", None)
            if isinstance(sandbox, SandboxOptions):
                check_backend(sandbox)
        except (*CANNOT_PICKLE, AgentrlError, EOFError, ImportError, IndexError) as error:
            kind = "" if isinstance(error, AgentrlError) else f"{type(error).__name__}: "
            raise ConfigError(
                f"env {name} cannot be played on {host} ({kind}{said_by(error)}); install what it "
                "needs there, or set ray.players to 0"
            ) from error
        opened.append((maker, prototype))
    return opened


@dataclass(frozen=True, slots=True)
class Home:
    """Where a player's driver is, and what it plays with."""

    host: str
    port: int
    secret: bytes
    codec: bytes
    envs: PickledEnvs
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Driver: play an episode."""

    number: int
    """By which both sides know it."""
    key: EpisodeKey
    place: int
    """Of its environment."""
    task: Task
    split: str
    limits: EpisodeLimits
    temperature: float
    recorded: RecordedTurns | None
    """Its turns from before the run was killed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Driver: what came of a request."""

    request: int
    completion: Completion | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Driver: nobody waits for that episode any more."""

    number: int


@dataclass(frozen=True, slots=True)
class PausedFor:
    """Driver: so long the engine was paused in all."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Asks:
    """Player: sample; without ids it only wants to know that all of before has come."""

    number: int
    request: int
    ids: NDArray[np.int32] | None
    sampling: Sampling | None


@dataclass(frozen=True, slots=True)
class AsksNoMore:
    """Player: nobody waits for that answer."""

    number: int


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """Player: whom an episode waits for, if not for the engine."""

    number: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class TurnLine:
    """Player: for the log of turns."""

    number: int
    line: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Ended:
    """Player: the episode, what ended the run of it, or neither after `GiveUp`."""

    number: int
    episode: Episode | None
    error: BaseException | None
    isolation: Sequence[tuple[str, ...]] = ()
    """Of the sandboxes that were used here so far."""


class Wire:
    """Messages over a connection, each whole and in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def greet(self, secret: bytes, number: int) -> None:
        """Say who this is."""
        self._writer.write(_HELLO.pack(secret, number))

    async def receive_greeting(self, secret: bytes) -> int | None:
        """The number of who is there; None: somebody who does not know the secret."""
        theirs, number = _HELLO.unpack(await self._reader.readexactly(_HELLO.size))
        return int(number) if hmac.compare_digest(theirs, secret) else None

    def send(self, message: object) -> None:
        """Without waiting; raises one of CANNOT_PICKLE. Nobody hears what comes after the end."""
        # Tasks and answers are the user's; what comes with each turn needs no such care.
        is_users = isinstance(message, Begin | Ended)
        data = dumps(message) if is_users else pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> object:
        """The next one; EOFError or OSError at the end of the connection."""
        (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        return pickle.loads(await self._reader.readexactly(size))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def play_for_driver(seat: Seat, home: Home) -> None:
    """What a player's process does until the driver hangs up.

    Raises:
        ConfigError: an environment cannot be played here.
    """
    codec: Codec = pickle.loads(home.codec)
    envs = open_envs(home.envs, seat.host)
    with closing(EnvServices(deadline_s=home.deadline_s)) as services:
        run(_connect_and_play(home, seat.number, _Player(codec, envs, services)))


async def _connect_and_play(home: Home, number: int, player: "_Player") -> None:
    async with asyncio.timeout(_CONNECT_S):
        wire = Wire(*await asyncio.open_connection(home.host, home.port))
    wire.greet(home.secret, number)
    async with LoopWatch():
        await player.serve(wire)


class _Player:
    """Episodes of one process."""

    def __init__(
        self, codec: Codec, envs: Sequence[tuple[EnvMaker, ToolEnv]], services: EnvServices
    ) -> None:
        self._codec, self._envs, self._services = codec, envs, services
        self._episodes: dict[int, asyncio.Task[Episode]] = {}
        self._requests = itertools.count()
        self._answers: dict[int, asyncio.Future[Completion | None]] = {}
        self._paused_s = 0.0

    async def serve(self, wire: Wire) -> None:
        self._wire = wire
        try:
            while True:
                self._do(await wire.receive())
        except (EOFError, OSError):
            pass  # the driver has closed the connection, or is gone
        finally:
            episodes = [*self._episodes.values()]
            for episode in episodes:
                episode.cancel()
            await asyncio.gather(*episodes, return_exceptions=True)
            wire.close()

    async def ask(
        self, number: int, ids: NDArray[np.int32] | None, sampling: Sampling | None
    ) -> Completion | None:
        request = next(self._requests)
        answer: asyncio.Future[Completion | None] = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        self.send(Asks(number, request, ids, sampling))
        try:
            return await answer
        except asyncio.CancelledError:
            self.send(AsksNoMore(number))
            raise
        finally:
            del self._answers[request]

    def send(self, message: object) -> None:
        self._wire.send(message)

    def _do(self, message: object) -> None:
        match message:
            case Begin(number=number):
                episode = asyncio.create_task(self._play(message))
                self._episodes[number] = episode
                episode.add_done_callback(lambda done: self._tell_end(number, done))
            case Answer(request, completion, error):
                answer = self._answers.get(request)
                if answer is None or answer.done():
                    return
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(completion)
            case GiveUp(number):
                if (given_up := self._episodes.get(number)) is not None:
                    given_up.cancel()
            case PausedFor(seconds):
                self._paused_s = seconds
            case _:
                raise AssertionError(message)

    async def _play(self, begin: Begin) -> Episode:
        maker, prototype = self._envs[begin.place]
        tokenizer = self._codec.tokenizer
        job = GroupJob(
            key=begin.key,
            env=maker.name,
            make_env=lambda: maker.make_like(prototype, self._services, tokenizer),
            task=begin.task,
            split=begin.split,
        )
        relay = _Relay(self, begin)
        runner = EpisodeRunner(
            codec=self._codec,
            generate=relay.generate,
            limits=begin.limits,
            temperature=begin.temperature,
            paused_s=lambda: self._paused_s,
            log=relay,
            say_owner=relay.say_owner,
        )
        return await runner.run(EpisodeRecord(job, begin.key, tokenizer.vocab_size))

    def _tell_end(self, number: int, done: "asyncio.Task[Episode]") -> None:
        del self._episodes[number]
        isolation = self._services.isolation
        if done.cancelled():
            self.send(Ended(number, None, None, isolation))
            return
        error = done.exception()
        try:
            self.send(Ended(number, None if error else done.result(), error, isolation))
        except CANNOT_PICKLE as why:
            what = f"it raised {said_by(error)}, which" if error else "its answer or its messages"
            fault = EnvironmentFault(f"{what} cannot be pickled ({why})")
            self.send(Ended(number, None, fault, isolation))


class _Relay(TurnsOfEpisodes):
    """What one episode has beside its environment, from the driver."""

    def __init__(self, player: _Player, begin: Begin) -> None:
        super().__init__({begin.key.id: begin.recorded} if begin.recorded else {})
        self._player, self._number = player, begin.number

    def append(self, episode: str, group: int, line: Mapping[str, object]) -> None:
        """Send it; what is sent later comes later."""
        self._player.send(TurnLine(self._number, line))

    async def until_kept(self) -> None:
        """Ask; the answer comes after all of before."""
        await self._player.ask(self._number, None, None)

    async def generate(
        self, ids: list[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """Let the driver's engine sample."""
        completion = await self._player.ask(self._number, np.array(ids, np.int32), sampling)
        assert completion is not None
        return completion

    def say_owner(self, _: str, owner: Owner) -> None:
        """Tell the driver."""
        self._player.send(WaitsFor(self._number, owner))
