"""`agentrl engine relay`: new weights come to this host once, for all its servers."""

import asyncio
from pathlib import Path

from pydantic import Field

from agentrl.cli.command import Arguments, Verb
from agentrl.cli.engine_serve import refuse_open_address
from agentrl.config import Config
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.process import HOST
from agentrl.engine.servers.weight_files import MEMORY


class RelayOptions(Config):
    """Where to listen."""

    port: int = Field(default=0, ge=0, le=65535, description="Port; 0: a free one.")
    host: str = Field(default=HOST, description="Address to listen on.")


def _run_engine_relay(options: RelayOptions, arguments: Arguments) -> int:
    from agentrl.engine.serve.listening import bind
    from agentrl.engine.serve.relay import serve_relay

    keys = Keys.given("relay")
    refuse_open_address(options.host, keys, "relay")
    with bind(options.host, options.port) as listening:
        url = f"http://{options.host}:{listening.getsockname()[1]}"

        def say(folder: Path) -> None:
            print(f"weights sent to {url} lie in {folder}; stop with Ctrl-C", flush=True)

        asyncio.run(serve_relay(MEMORY, listening, keys, say))
    print("stopped", flush=True)
    return 0


COMMAND = Verb(
    summary="Keep new weights on a host of servers, sent there once for all of them.",
    examples=["agentrl engine relay --host 10.0.0.2 --port 31000"],
    options=RelayOptions,
    run=_run_engine_relay,
)
