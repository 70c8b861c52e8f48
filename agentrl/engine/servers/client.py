"""Requests to one server, token ids in and token ids out: the path that every turn takes.

aiohttp and orjson, since they cost a tenth of the CPU time of httpx with long prompts. What goes
wrong is told apart by whether another try may help: `Busy` and `Unreachable` are worth one.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar
from uuid import uuid4

import aiohttp

from agentrl.engine.servers.answer import error_text
from agentrl.errors import EngineError
from agentrl.types import Completion, Sampling

CONNECT_S = 10.0
_KEEPALIVE_S = 3.0  # the server closes idle connections after 5 s


class Busy(EngineError):
    """The server's queue is full; it is worth waiting."""


class Unreachable(EngineError):
    """The connection failed; the server may be gone."""


def new_rid() -> str:
    """A request id: all of one length, since the server aborts every id that begins with one."""
    return uuid4().hex


class ServerClient(ABC):
    """Connections to one server. Every call runs on the event loop of the first one."""

    title: ClassVar[str]
    """What kind of server it is."""
    path: ClassVar[str]
    """Where it samples."""
    key_hint: ClassVar[str]
    """How one gets in."""
    gone: ClassVar[str] = "\0"
    """What it answers when only its front is left."""

    def __init__(self, url: str, headers: Mapping[str, str], *, vocab_size: int) -> None:
        """`headers` may hold a key: they are sent, and shown nowhere."""
        self.url, self.vocab_size = url, vocab_size
        self._headers = {"Content-Type": "application/json", **headers}
        self._session: aiohttp.ClientSession | None = None

    @abstractmethod
    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        rid: str,
        cache_key: str | None = None,
        adapter: str | None = None,
    ) -> tuple[Completion, int | None]:
        """One completion of checked ids, and the id that stopped it; no deadline of its own.

        Raises as `post` does, and EngineError if the answer is wrong.
        """

    async def post(self, body: bytes) -> bytes:
        """What the server answers with status 200.

        Raises:
            Busy: its queue is full.
            Unreachable: the connection failed.
            EngineError: it refused.
        """
        try:
            async with self._get_or_open_http_session().post(
                f"{self.url}{self.path}", data=body, headers=self._headers
            ) as response:
                answer = await response.read()
                status = response.status
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise Unreachable(f"the {self.title} server at {self.url} cut off: {what}") from error
        if status == 200:
            return answer
        text = f"the {self.title} server at {self.url} answered {error_text(status, answer)}"
        if self.gone in text:
            raise Unreachable(text)
        if status == 503:
            raise Busy(text)
        if status in (401, 403):
            text += f"; {self.key_hint}"
        raise EngineError(text)

    async def aclose(self) -> None:
        """Close the connections; what still runs on them is aborted by the server."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # lets the transports close

    def _get_or_open_http_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session
