"""The provider of examples/remote_sandbox, over a socket that is there already.

It serves as soon as its standard input ends, so that another one can stand by, and strikes while
the third answer is looked at.
"""

import asyncio
import importlib.util
import socket
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

sys.path.insert(0, str(Path(__file__).parents[2]))
from agentrl.sandboxes import SandboxOptions
from tests.e2e.chaos_env import REMOTE, strike


@web.middleware
async def struck(request: web.Request, handler: Handler) -> web.StreamResponse:
    is_look = "LOOK" in await request.text()
    running = asyncio.ensure_future(handler(request))
    if is_look:
        await asyncio.sleep(0.05)
        strike("sandbox host", after=2)
    return await running


def main() -> None:
    spec = importlib.util.spec_from_file_location("server", REMOTE.with_name("server.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.make_app(SandboxOptions(backend="bwrap"))
    app.middlewares.append(struck)
    sys.stdin.read()
    web.run_app(app, sock=socket.socket(fileno=int(sys.argv[1])), print=None, access_log=None)


if __name__ == "__main__":
    main()
