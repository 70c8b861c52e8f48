"""The control plane of one server: state, pausing, weights. Small calls, so httpx will do."""

import asyncio
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import httpx

from agentrl.engine.servers.answer import error_text
from agentrl.errors import EngineError

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True, slots=True)
class Keys:
    """What a server asks for: one key for requests, one for control; empty where it asks none."""

    user: str = field(default="", repr=False)
    admin: str = field(default="", repr=False)

    @classmethod
    def given(cls, name: str) -> "Keys":
        """Those of the environment for an engine, such as `AGENTRL_SGLANG_KEY`.

        A server that has one key only takes it for both.
        """
        user = os.environ.get(f"AGENTRL_{name.upper()}_KEY", "")
        return cls(user, os.environ.get(f"AGENTRL_{name.upper()}_ADMIN_KEY") or user)

    @classmethod
    def random(cls) -> "Keys":
        """New ones that nobody else has."""
        return cls(secrets.token_hex(32), secrets.token_hex(32))

    def headers(self, *, admin: bool = False) -> dict[str, str]:
        """The header of a request, or of a control call; it is sent, and shown nowhere."""
        key = self.admin if admin else self.user
        return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What a server says of itself."""

    version: str
    weight_version: str
    model_path: str
    dtype: str
    tp_size: int
    dp_size: int
    kv_tokens: int
    longest_prompt: int
    """Tokens; it is shorter than the context, and than the cache."""
    lags: bool
    """A token is booked a step after it was sampled, with the version of then."""
    quirks: tuple[str, ...]
    """Settings that bias or break training, as `name=value`."""


def parse_version_numbers(version: str) -> tuple[int, ...]:
    """The numbers at the front of a version."""
    parts: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


class ServerControl(ABC):
    """Calls to one server; each raises EngineError with the server's reason."""

    title: ClassVar[str]
    """What kind of server it is."""
    key_hint: ClassVar[str]
    """How one gets in."""
    settings: ClassVar[str]
    """Where its settings stand."""
    temperature_hint: ClassVar[str]
    """How it gives logprobs after the temperature."""

    def __init__(self, url: str, keys: Keys, *, timeout_s: float = 60.0) -> None:
        self.url = url
        self._keys = keys
        self._http = httpx.AsyncClient(base_url=url, timeout=timeout_s, headers=keys.headers())
        self._clocks: set[asyncio.Timeout] = set()

    def let_go(self) -> None:
        """End the calls that run: nobody will answer them."""
        now = asyncio.get_running_loop().time()
        while self._clocks:
            self._clocks.pop().reschedule(now)

    async def healthy(self, timeout_s: float = 10.0) -> bool:
        """True if the server answers its health check, paused or not."""
        try:
            return (await self._http.get("/health", timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    @abstractmethod
    async def info(self) -> Info:
        """What the server is.

        Raises EngineError for a version that is not supported.
        """

    @abstractmethod
    async def abort(self, rid: str) -> None:
        """End a running request; it answers with what it has."""

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on."""

    @abstractmethod
    async def release(self, tags: Sequence[str]) -> None:
        """Give up memory; the server must be paused, and nothing may run."""

    @abstractmethod
    async def take_back(self, tags: Sequence[str]) -> None:
        """Take it again; a server may end at a tag that was not released."""

    @abstractmethod
    async def flush(self, timeout_s: float = 30.0) -> None:
        """Forget all keys and values, once nothing runs."""

    @abstractmethod
    async def set_version(self, version: int) -> None:
        """Name the weights that are loaded."""

    @abstractmethod
    async def tokenize(self, text: str) -> Sequence[object]:
        """The server's ids of a text."""

    @abstractmethod
    async def describe_truncation(self, ids: Sequence[int]) -> str:
        """What is said of a token when sampling keeps the likeliest one only."""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def request_json(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
        admin: bool = True,
    ) -> object:
        """What the server answers; raises EngineError with its reason."""
        timeout = self._http.timeout if timeout_s is None else timeout_s
        headers = self._keys.headers(admin=admin)
        clock = asyncio.timeout(None)
        try:
            async with clock:
                self._clocks.add(clock)
                response = await self._http.request(
                    method, path, json=body, timeout=timeout, headers=headers
                )
        except (httpx.HTTPError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise EngineError(
                f"the {self.title} server at {self.url} did not do {path}: {what}"
            ) from error
        finally:
            self._clocks.discard(clock)
        if response.status_code != 200:
            text = error_text(response.status_code, response.content)
            if response.status_code in (401, 403):
                text += f"; {self.key_hint}"
            raise EngineError(f"the {self.title} server at {self.url} refused {path}: {text}")
        try:
            return response.json() if response.content else {}
        except ValueError:
            return response.text


def as_json_object(said: object) -> Mapping[str, object]:
    """A JSON object's fields; none for any other answer."""
    return cast("Mapping[str, object]", said) if isinstance(said, dict) else {}
