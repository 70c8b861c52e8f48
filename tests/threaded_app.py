"""An aiohttp application on a thread of its own, for code that waits for its answers."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from aiohttp import web


@contextmanager
def serving(make: Callable[[], Coroutine[Any, Any, web.Application]]) -> Generator[str]:
    """The URL of an application, which is made on the loop that serves it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(await make(), shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def stop() -> None:
        # A connection that is accepted while its server closes is left to the garbage collector.
        await asyncio.sleep(0.05)
        await runner.cleanup()

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
