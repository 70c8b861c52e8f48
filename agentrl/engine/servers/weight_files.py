"""Weights as a file that servers load: in a folder that they see, or through a relay on each host.

tensors ─▶ file here ─▶ once to each relay ─▶ file there ─▶ each server of that host
"""

# pyright: reportUnknownVariableType=false
# (safetensors is not fully typed)

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx

from agentrl.engine.servers.answer import error_text
from agentrl.engine.servers.control import Keys
from agentrl.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from torch import Tensor

MEMORY: Final = Path("/dev/shm")
_CONNECT_S: Final = 10.0
_CHUNK: Final = 1 << 20


def host_of(url: str) -> str:
    """The host of a URL."""
    return urlsplit(url).hostname or ""


def check_relays(relays: Sequence[str], servers: Sequence[str]) -> None:
    """Raise ConfigError for no address, a server without a relay on its host, or the reverse."""
    have, need = [host_of(url) for url in relays], {host_of(url) for url in servers}
    if not relays:
        return
    for url, host in zip(relays, have, strict=True):
        if not (host and url.startswith(("http://", "https://"))):
            raise ConfigError(
                f"engine.relays: got {url!r}, expected an address such as http://10.0.0.2:31000"
            )
    if missing := sorted(need - {*have}):
        raise ConfigError(
            f"engine.relays: got relays on {', '.join(have)}, but a server is on {missing[0]}; "
            "start one there by `agentrl engine relay` and name it too"
        )
    if idle := [host for host in have if host not in need]:
        raise ConfigError(
            f"engine.relays: no server is on {idle[0]}; expected the hosts of the servers' "
            f"addresses ({', '.join(sorted(need)) or 'none is named'})"
        )
    if len({*have}) < len(have):
        raise ConfigError("engine.relays: got two relays on one host; one has the weights for all")


class WeightFiles:
    """The file of one version, here and where it was brought; it is memory, so `forget` it."""

    def __init__(self, root: Path | None, relays: Sequence[str], *, timeout_s: float) -> None:
        """`root` is where the folder is made, `relays` their addresses, at most one per host."""
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=root))
        self._relays = {host_of(url): url.rstrip("/") for url in relays}
        self._timeout_s = timeout_s
        self._version: int | None = None
        self._brought: dict[str, str | EngineError] = {}
        """By host: the folder there, or why it has none."""

    @property
    def hosts(self) -> Iterable[str]:
        """Those that have a relay."""
        return self._relays.keys()

    async def bring(
        self, named: Iterable[tuple[str, "Tensor"]], version: int, hosts: Iterable[str]
    ) -> None:
        """Write the file and send it to the relays of the hosts; what is there already stays.

        Raises EngineError if it cannot be written. What a relay does not take, `folder_for` says.
        """
        file = self._folder / "model.safetensors"
        if version != self._version:
            self._version, self._brought = None, {}
            tensors = {name: tensor.cpu().contiguous() for name, tensor in named}
            try:
                await asyncio.to_thread(_save, tensors, file)
            except OSError as error:
                raise EngineError(
                    f"the weights cannot be written to {self._folder} ({error}); make room there"
                ) from error
            self._version = version
        there = {host for host, folder in self._brought.items() if isinstance(folder, str)}
        missing = sorted(({*hosts} & {*self.hosts}) - there)
        folders = await asyncio.gather(*(self._send(self._relays[host]) for host in missing))
        self._brought |= dict(zip(missing, folders, strict=True))

    def folder_for(self, url: str) -> str:
        """The folder that the server at `url` finds the file in; raises EngineError without one."""
        found = self._brought.get(host_of(url), str(self._folder))
        if isinstance(found, EngineError):
            raise found
        return found

    async def forget(self) -> None:
        """Give up the file, here and there."""
        self._version = None
        (self._folder / "model.safetensors").unlink(missing_ok=True)
        brought, self._brought = self._brought, {}

        async def tell(host: str) -> None:
            with suppress(httpx.HTTPError):  # the next file takes its place
                async with self._client() as client:
                    await client.delete(f"{self._relays[host]}/weights")

        await asyncio.gather(*(tell(host) for host in brought))

    async def aclose(self) -> None:
        """Remove the folder too."""
        await self.forget()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _send(self, relay: str) -> str | EngineError:
        """Send the file to a relay; the folder that it is in there, or what went wrong."""
        file = self._folder / "model.safetensors"

        async def chunks() -> AsyncIterator[bytes]:
            with file.open("rb") as opened:
                while chunk := opened.read(_CHUNK):
                    yield chunk

        try:
            async with asyncio.timeout(self._timeout_s), self._client() as client:
                response = await client.put(
                    f"{relay}/weights",
                    content=chunks(),
                    headers={"Content-Length": str(file.stat().st_size)},
                )
            if response.status_code == 200:
                return str(response.json()["folder"])
            reason = f"answered {error_text(response.status_code, response.content)}"
            if response.status_code == 401:
                reason += "; set AGENTRL_RELAY_KEY to its key"
        except TimeoutError:
            reason = f"took no weights within {self._timeout_s:g} s"
        except httpx.HTTPError as error:
            reason = f"took no weights: {str(error) or type(error).__name__}"
        except (ValueError, KeyError, TypeError):
            reason = "answers as no relay does"
        return EngineError(f"the relay at {relay} {reason}")

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            timeout=httpx.Timeout(self._timeout_s, connect=_CONNECT_S),
            headers=Keys.given("relay").headers(),
        )


def _save(tensors: "dict[str, Tensor]", file: Path) -> None:
    from safetensors.torch import save_file  # torch, only now

    save_file(tensors, file, metadata={"format": "pt"})
