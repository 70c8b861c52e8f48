"""A relay: one copy of the weights on a host, for all the servers that are there.

trainer ─▶ PUT /weights, once per host ─▶ a file in this host's memory ─▶ each server loads it
"""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from aiohttp import web

from agentrl.engine.serve.listening import has_headers, served_until_stopped, stop_at_signals
from agentrl.engine.servers.control import Keys

FILE: Final = "model.safetensors"
_PREFIX: Final = "agentrl-relay-"
_CHUNK: Final = 1 << 20


class Relay:
    """The routes over one folder; clients must bring the key."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self._folder = folder
        self._keys = keys
        self._busy = asyncio.Lock()

    def make(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=0)  # weights come in bodies of any size
        app.router.add_put("/weights", self._take)
        app.router.add_delete("/weights", self._forget)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        """Keep what comes in place of what was there; a server that reads that goes on."""
        if refusal := self._refuse(request):
            return refusal
        size = request.content_length
        if size is None:
            return _answer({"error": "the weights come without their size"}, 411)
        async with self._busy:
            (self._folder / FILE).unlink(missing_ok=True)  # else both would have to fit
            free = shutil.disk_usage(self._folder).free
            if size > free:
                return _answer({"error": f"{size:,} bytes came, {free:,} are free"}, 507)
            part = self._folder / f".{FILE}"
            try:
                with part.open("wb") as file:
                    async for chunk in request.content.iter_chunked(_CHUNK):
                        file.write(chunk)
                part.rename(self._folder / FILE)
            finally:
                part.unlink(missing_ok=True)
        return _answer({"folder": str(self._folder)})

    async def _forget(self, request: web.Request) -> web.Response:
        """Give the memory back."""
        if refusal := self._refuse(request):
            return refusal
        async with self._busy:
            (self._folder / FILE).unlink(missing_ok=True)
        return _answer({})

    def _refuse(self, request: web.Request) -> web.Response | None:
        right = has_headers(request, self._keys.headers())
        return None if right else _answer({"error": "the key is not this relay's"}, 401)


async def serve_relay(
    root: Path, listening: socket.socket, keys: Keys, ready: Callable[[Path], None]
) -> None:
    """Keep weights in a folder of `root` until SIGTERM or SIGINT; then it is gone."""
    stop = stop_at_signals()
    with _own_folder(root) as folder:
        app = Relay(folder, keys).make()
        async with served_until_stopped(app, listening, stop, lambda: ready(folder)):
            pass


@contextmanager
def _own_folder(root: Path) -> Generator[Path]:
    """A new folder, which a lock tells from those of relays that were killed: they go now."""
    with ExitStack() as stack:
        with _locked(root, waits=True):  # so that no other relay takes a new one for an old one
            for old in root.glob(f"{_PREFIX}*"):
                with suppress(OSError), _locked(old):
                    shutil.rmtree(old)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_locked(folder))
        folder.chmod(0o711)  # a server of another user may read the file, and list nothing
        yield folder


@contextmanager
def _locked(folder: Path, *, waits: bool = False) -> Generator[None]:
    """Raises BlockingIOError if a process that lives holds it, unless that is waited for."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def _answer(content: object, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(content), status=status, content_type="application/json")
