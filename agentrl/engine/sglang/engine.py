"""`SglangEngine`: one or more SGLang servers as an engine."""

from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.engine import ServedEngine
from agentrl.engine.servers.process import Server
from agentrl.engine.servers.router import ServerState
from agentrl.engine.sglang.client import GenerateClient
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.install import SGLANG


class SglangEngine(ServedEngine):
    """Samples with SGLang servers that are running or were started for it."""

    def make_server_state(self, server: Server | str) -> ServerState:
        """With the keys of the environment, or those that it was started with."""
        owned = None if isinstance(server, str) else server
        keys = Keys.given(SGLANG.name) if owned is None else owned.keys
        url = server if isinstance(server, str) else server.url
        client = GenerateClient(
            url.rstrip("/"), keys.headers(), vocab_size=self.vocab_size, experts=self.experts
        )
        control = Control(client.url, keys, timeout_s=self.control_s)
        return ServerState(client=client, control=control, server=owned)
