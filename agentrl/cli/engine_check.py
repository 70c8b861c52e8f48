"""`agentrl engine check`: can a running server be trained with?"""

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from functools import partial

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.engine.servers.check import EngineCheckRow, check_server
from agentrl.engine.servers.control import Info
from agentrl.errors import ConfigError, EngineError
from agentrl.orchestration.kinds import SERVERS, ServerKind
from agentrl.tokens import Tokenizer

_ANY = 2**31
"""A length of contexts that nothing is longer than."""


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
        ConfigError: there is no server, or no folder of its model here.
    """
    from agentrl.engine.local.models.load import load_model  # torch, only now
    from agentrl.engine.local.models.resolve import resolve_model
    from agentrl.engine.servers.launch import vocab_size
    from agentrl.trainer.logprobs import sequence_logprobs

    kind, info = await _find_kind_of_server(url)
    folder = resolve_model(model or info.model_path)
    trained, size = load_model(folder), vocab_size(folder)
    async with aclosing(kind.engine([url], vocab_size=size, context_length=_ANY)) as engine:
        return await check_server(
            engine.slots[0],
            Tokenizer.load(folder),
            vocab_size=size,
            reference=partial(sequence_logprobs, trained),
        )


async def _find_kind_of_server(url: str) -> tuple[ServerKind, Info]:
    refused: list[str] = []
    for kind in reversed([*SERVERS.values()]):
        async with aclosing(kind.engine([url], vocab_size=1, context_length=_ANY)) as engine:
            try:
                return kind, await engine.slots[0].control.info()
            except EngineError as error:
                refused.append(str(error))
    raise ConfigError(next((text for text in refused if ", expected " in text), refused[-1]))


COMMAND = Verb(
    summary="Ask a running server whether it can be trained with.",
    examples=[
        "agentrl engine check http://127.0.0.1:30000",
        "agentrl engine check http://127.0.0.1:30000 --model smollm2-135m --json",
    ],
    options=EngineCheckOptions,
    run=_run_engine_check,
    takes=["URL"],
)
