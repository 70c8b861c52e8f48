"""A small hosted sandbox provider: HTTP in front of sandboxes of its own.

POST /sandboxes                 -> {"id": ...}
POST /sandboxes/ID/exec         argv, cwd, env, stdin, timeout_s, max_output -> the result
POST /sandboxes/ID/kill         ends what commands have left
DELETE /sandboxes/ID
GET /health                     -> at once, whatever runs
"""

import argparse
import base64
import secrets
from typing import Any

from aiohttp import web

from agentrl.sandboxes import Limits, Sandbox, SandboxOptions, make_sandbox

BOXES = web.AppKey("boxes", dict[str, Sandbox])
OPTIONS = web.AppKey("options", SandboxOptions)


async def answer_health(request: web.Request) -> web.Response:
    return web.Response()


async def create(request: web.Request) -> web.Response:
    # The client cuts output itself, and reads files by commands.
    wanted = Limits.model_validate({**await request.json(), "output_bytes": 1 << 26})
    options = request.app[OPTIONS].model_copy(update={"limits": wanted})
    box = await make_sandbox(options).start()
    name = secrets.token_hex(8)
    request.app[BOXES][name] = box
    return web.json_response({"id": name, "capabilities": sorted(box.capabilities - {"sessions"})})


async def execute(request: web.Request) -> web.Response:
    wanted: dict[str, Any] = await request.json()
    wanted["stdin"] = base64.b64decode(wanted["stdin"])
    result = await _box(request).exec(wanted.pop("argv"), **wanted)
    fields = {name: getattr(result, name) for name in result.__slots__}
    for stream in ("stdout", "stderr"):
        fields[stream] = base64.b64encode(fields[stream]).decode()
    return web.json_response(fields)


async def kill(request: web.Request) -> web.Response:
    await _box(request).kill_leftovers()
    return web.Response()


async def delete(request: web.Request) -> web.Response:
    await _box(request).close()
    del request.app[BOXES][request.match_info["id"]]
    return web.Response()


def _box(request: web.Request) -> Sandbox:
    box = request.app[BOXES].get(request.match_info["id"])
    if box is None:
        raise web.HTTPNotFound
    return box


async def close_all(app: web.Application) -> None:
    for box in app[BOXES].values():
        await box.close()


def make_app(options: SandboxOptions) -> web.Application:
    app = web.Application(client_max_size=1 << 28)
    app[BOXES], app[OPTIONS] = {}, options
    app.add_routes(
        [
            web.post("/sandboxes", create),
            web.post("/sandboxes/{id}/exec", execute),
            web.post("/sandboxes/{id}/kill", kill),
            web.delete("/sandboxes/{id}", delete),
            web.get("/health", answer_health),
        ]
    )
    app.on_cleanup.append(close_all)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--backend", default="bwrap")
    asked = parser.parse_args()
    served = make_app(SandboxOptions(backend=asked.backend))
    web.run_app(served, host="127.0.0.1", port=asked.port)
