"""A proxy in front of a real server, which misbehaves when it is told to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from typing import Any

import aiohttp
from aiohttp import web

PROMPT = list(range(300, 340))
HEADERS = ("Content-Type", "Authorization")


class Proxy:
    """Forwards everything; `faults` are what happens to the next calls of `path`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.path = "/generate"
        self.faults: list[str] = []
        self.calls = 0
        self.url = ""

    async def run(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self.http:
            app = web.Application(client_max_size=1 << 30)
            app.router.add_route("*", "/{path:.*}", self.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
            await runner.cleanup()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fault = ""
        if request.path == self.path:
            self.calls += 1
            fault = self.faults.pop(0) if self.faults else ""
        if fault in ("500", "503"):
            return web.json_response({"error": {"message": "made up"}}, status=int(fault))
        if fault == "late":
            await asyncio.sleep(3)
        body = await request.read()
        url = f"{self.target}{request.path_qs}"
        head = {name: request.headers[name] for name in HEADERS if name in request.headers}
        answer, status = b"", 200
        if fault != "swallowed":
            try:
                async with self.http.request(
                    request.method, url, data=BytesIO(body), headers=head
                ) as got:
                    answer, status = await got.read(), got.status
            except aiohttp.ClientError:
                fault = "cut"
        if fault == "cut":
            if request.transport is not None:
                request.transport.close()
        elif fault == "swallowed":
            answer = b'{"success": true, "message": "made up"}'
        elif fault:
            answer = json.dumps(CHANGES[fault](json.loads(answer))).encode()
        return web.Response(body=answer, status=status, content_type="application/json")


def _id(answer: dict[str, Any]) -> dict[str, Any]:
    answer["output_ids"][0] += 1
    return answer


def _logprob(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"]["output_token_logprobs"].append([-1.0, 5, None])
    return answer


def _prompt(answer: dict[str, Any]) -> dict[str, Any]:
    answer["output_ids"] = [*PROMPT, *answer["output_ids"]]
    rows = [[-1.0, i, None] for i in PROMPT]
    answer["meta_info"]["output_token_logprobs"][:0] = rows
    return answer


def _dropped(answer: dict[str, Any]) -> dict[str, Any]:
    del answer["meta_info"]["weight_versions"]
    return answer


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "wrong id": _id,
    "one logprob too many": _logprob,
    "prompt in front": _prompt,
    "no versions": _dropped,
}
