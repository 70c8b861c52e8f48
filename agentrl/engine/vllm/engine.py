"""`VllmEngine`: one or more vLLM servers as an engine."""

from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.engine import ServedEngine
from agentrl.engine.servers.process import Server
from agentrl.engine.servers.router import ServerState
from agentrl.engine.vllm.client import VllmClient
from agentrl.engine.vllm.control import VllmControl
from agentrl.engine.vllm.install import VLLM


class VllmEngine(ServedEngine):
    """Samples with vLLM servers that are running or were started for it."""

    def make_server_state(self, server: Server | str) -> ServerState:
        """With the key of the environment, or that which it was started with."""
        owned = None if isinstance(server, str) else server
        keys = Keys.given(VLLM.name) if owned is None else owned.keys
        url = (server if isinstance(server, str) else server.url).rstrip("/")
        return ServerState(
            client=VllmClient(url, keys.headers(), vocab_size=self.vocab_size),
            control=VllmControl(url, keys, timeout_s=self.control_s),
            server=owned,
        )
