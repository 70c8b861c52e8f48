"""Fixed admission: episodes reach the engine in rounds, in the order of their keys.

    every live episode asks, or ends   →   the round is full   →   all requests go in, sorted by key
               ↑                                                                  │
               └──────────── answers are handed out when all of them are there ───┘

So the order and the shapes of the engine's batches are functions of the episodes alone, never of
which tool happened to answer first. It costs the time of the slowest request of each round.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.engine import Engine
from agentrl.types import Completion, EpisodeSession, Sampling


@dataclass(slots=True, eq=False)
class _Request:
    ids: Sequence[int]
    sampling: Sampling
    session: EpisodeSession
    answer: "asyncio.Future[Completion]"
    call: "asyncio.Task[Completion] | None" = None
    """The engine's work on it, once its round has begun."""


class Lockstep:
    """Hands requests to an engine in full rounds; `join` and `leave` say which episodes live."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._live = 0
        self._waiting: list[_Request] = []
        self._running: asyncio.Task[None] | None = None

    def join(self, episodes: int) -> None:
        """So many more live; the next round waits for them."""
        self._live += episodes

    def leave(self) -> None:
        """An episode ended; a round may be full without it."""
        self._live -= 1
        self._start_round_if_all_wait()

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """As `Engine.generate`, answered with the whole round."""
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = _Request(ids, sampling, session, answer)
        self._waiting.append(request)
        self._start_round_if_all_wait()
        try:
            return await answer
        except asyncio.CancelledError:
            # Nobody waits for the answer any more.
            if request in self._waiting:
                self._waiting.remove(request)
            elif request.call is not None:
                request.call.cancel()
            raise

    async def drain(self) -> None:
        """Wait for what is left of a round whose episodes have gone."""
        while self._running is not None:
            await self._running

    def _start_round_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= self._live and self._running is None:
            requests, self._waiting = self._waiting, []
            self._running = asyncio.ensure_future(self._answer_round_in_key_order(requests))

    async def _answer_round_in_key_order(self, requests: list[_Request]) -> None:
        requests.sort(key=lambda request: request.session.key)
        # Gathered for its errors: what stops the round is the answer to each of its requests.
        [answers] = await asyncio.gather(
            self._generate_all_together(requests), return_exceptions=True
        )
        if isinstance(answers, BaseException):
            answers = [answers] * len(requests)
        self._running = None
        for request, answer in zip(requests, answers, strict=True):
            if request.answer.done():  # its episode was cancelled
                continue
            if isinstance(answer, BaseException):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        self._start_round_if_all_wait()

    async def _generate_all_together(
        self, requests: list[_Request]
    ) -> list[Completion | BaseException]:
        await self._engine.pause()  # so that the engine's first batch already holds all of them
        calls: list[asyncio.Task[Completion]] = []
        try:
            for request in requests:
                call = self._engine.generate(request.ids, request.sampling, request.session)
                request.call = asyncio.create_task(call)
                calls.append(request.call)
            await asyncio.sleep(0)
            await self._engine.resume()
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            for one in calls:
                one.cancel()  # those that are done stay as they are
