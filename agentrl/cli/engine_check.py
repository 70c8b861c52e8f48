"""`agentrl engine check`: can a running server be trained with?"""

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from functools import partial

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.engine.servers.check import EngineCheckRow, check_server
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.router import ServerState
from agentrl.engine.sglang.client import GenerateClient
from agentrl.engine.sglang.control import Control
from agentrl.errors import ConfigError, EngineError
from agentrl.tokens import Tokenizer


class EngineCheckOptions(JsonOption):
    """What to compare with."""

    model: str | None = Field(
        default=None, description="The model that is trained; by default the server's own folder."
    )


def _run_engine_check(options: EngineCheckOptions, arguments: Arguments) -> int:
    url = arguments.positional[0].rstrip("/")
    rows = asyncio.run(_examine_server_at_url(url, options.model))
    ok = all(row.ok for row in rows)
    lines = [f"{'ok  ' if row.ok else 'FAIL'}  {row.name:11}  {row.detail}" for row in rows]
    options.show({"url": url, "ok": ok, "rows": [asdict(row) for row in rows]}, "\n".join(lines))
    return 0 if ok else 1


async def _examine_server_at_url(url: str, model: str | None) -> list[EngineCheckRow]:
    """The rows of a running server against a model on the CPU.

    Raises:
        ConfigError: there is no SGLang server, or no folder of its model here.
    """
    from agentrl.engine.local.models.load import load_model  # torch, only now
    from agentrl.engine.local.models.resolve import resolve_model
    from agentrl.engine.sglang.launch import vocab_size
    from agentrl.trainer.logprobs import sequence_logprobs

    keys = Keys.given("sglang")
    async with aclosing(Control(url, keys)) as control:
        try:
            info = await control.info()
        except EngineError as error:
            raise ConfigError(str(error)) from error
        folder = resolve_model(model or info.model_path)
        trained, size = load_model(folder), vocab_size(folder)
        async with aclosing(GenerateClient(url, keys.headers(), vocab_size=size)) as client:
            return await check_server(
                ServerState(client=client, control=control),
                Tokenizer.load(folder),
                vocab_size=size,
                reference=partial(sequence_logprobs, trained),
            )


COMMAND = Verb(
    summary="Ask a running SGLang server whether it can be trained with.",
    examples=[
        "agentrl engine check http://127.0.0.1:30000",
        "agentrl engine check http://127.0.0.1:30000 --model smollm2-135m --json",
    ],
    options=EngineCheckOptions,
    run=_run_engine_check,
    takes=["URL"],
)
