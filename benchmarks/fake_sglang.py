"""A stand-in for SGLang's `/generate` that answers at once: token ids in, canned ids out.

    python benchmarks/fake_sglang.py < canned.json

`canned.json` holds `stop_id`, `calls` and `answers` (lists of completions) and `turns`. The first
line of the output is the port. An episode's last turn gets an answer, every other turn a call; how
many turns it has had is told by the stop tokens in its prompt: two, then two for each turn. The
body is what SGLang 0.5.23 sends.
"""

import json
import random
import socket
import sys
from typing import Any

import orjson
from aiohttp import web


def body(ids: list[int], num_prompt: int) -> bytes:
    """The answer of the server to a prompt of `num_prompt` ids."""
    meta = {
        "id": "0" * 32,
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "prompt_tokens": num_prompt,
        "weight_version": "0",
        "total_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-1.25, number, None] for number in ids],
        "completion_tokens": len(ids),
        "cached_tokens": num_prompt - 1,
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
        "e2e_latency": 0.1,
    }
    return orjson.dumps({"text": "x" * 3 * len(ids), "output_ids": ids, "meta_info": meta})


def application(canned: dict[str, Any]) -> web.Application:
    """The endpoint."""

    async def generate(request: web.Request) -> web.Response:
        ids = orjson.loads(await request.read())["input_ids"]
        had = (ids.count(canned["stop_id"]) - 2) // 2
        kind = "answers" if had >= canned["turns"] - 1 else "calls"
        answer = body(random.choice(canned[kind]), len(ids))
        return web.Response(body=answer, content_type="application/json")

    found = web.Application(client_max_size=1 << 28)
    found.add_routes([web.post("/generate", generate)])
    return found


def main() -> None:
    """Serve until the process is ended."""
    canned: dict[str, Any] = json.load(sys.stdin)
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listening.getsockname()[1], flush=True)
    web.run_app(application(canned), sock=listening, print=None, access_log=None)


if __name__ == "__main__":
    main()
