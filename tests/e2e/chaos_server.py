"""A stand-in for an SGLang server of a model whose logits are all alike: it draws any tokens.

It takes the arguments that a server is started with, and strikes at the fifth request.
"""

import argparse
import asyncio
import json
import math
import random
import sys
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.e2e.chaos_env import strike


class Server:
    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.version = "0"

    async def generate(self, request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        sampling = asked["sampling_params"]
        num = sampling["max_new_tokens"]
        await asyncio.sleep(0.05)
        is_wrong = strike("engine", after=4)
        ids = [random.randrange(self.vocab_size) for _ in range(num)]
        stop = next((i for i, token in enumerate(ids) if token in sampling["stop_token_ids"]), None)
        ids = ids if stop is None else ids[: stop + 1]
        kind = {"type": "length"} if stop is None else {"type": "stop", "matched": ids[-1]}
        logprob = math.log(1 / self.vocab_size)
        meta = {
            "finish_reason": kind,
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "output_token_logprobs": [[logprob, token, None] for token in ids[is_wrong:]],
            "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
        }
        return web.json_response({"text": "", "output_ids": ids, "meta_info": meta})

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/update_weight_version":
            self.version = str((await request.json())["new_version"])
        if request.path == "/server_info":
            sizes = {"max_total_num_tokens": 10_000, "max_req_input_len": 4_096}
            names = {"version": "0.5.23", "weight_version": self.version, "model_path": "m"}
            return web.json_response(
                names | sizes | {"dtype": "float32", "tp_size": 1, "dp_size": 1}
            )
        return web.json_response({"success": True})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--model-path", type=Path)
    given, _ = parser.parse_known_args()
    config = json.loads((given.model_path / "config.json").read_text())
    server = Server(config["vocab_size"])
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/generate", server.generate)
    app.router.add_route("*", "/{path:.*}", server.answer)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
