"""A socket that listens, and an application on it until the process is told to stop."""

import asyncio
import hmac
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from agentrl.errors import ConfigError

_STOP_S = 5.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the port is taken, or the host is none of this machine.
    """
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ConfigError(
            f"port {port} of {host} cannot be used ({reason}); give another one or none"
        ) from error


def has_headers(request: web.Request, wanted: Mapping[str, str]) -> bool:
    """Whether a request brings what it has to, such as a key; takes as long where it does not."""
    return all(
        hmac.compare_digest(request.headers.get(name, "").encode(), value.encode())
        for name, value in wanted.items()
    )


def stop_at_signals() -> asyncio.Event:
    """An event of the running loop that SIGTERM and SIGINT set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@asynccontextmanager
async def served_until_stopped(
    app: web.Application,
    listening: socket.socket,
    stop: asyncio.Event,
    ready: Callable[[], None],
) -> AsyncGenerator[None]:
    """Serve until `stop`, which the block begins with, and to the block's end."""
    # Cancellation, so that the request of a client that went away ends.
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=_STOP_S
    )
    try:
        await runner.setup()
        await web.SockSite(runner, listening).start()
        if not stop.is_set():
            ready()
        await stop.wait()
        yield
    finally:
        await runner.cleanup()
