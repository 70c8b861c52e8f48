"""Lets nobody in who has no key: vLLM's own check leaves pauses and weights to everyone."""

import os
import secrets

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

_KEY = os.environ.pop("AGENTRL_VLLM_KEY", "")


class NeedsKey:
    """A layer of the server, given to it by `--middleware`."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        """Answer, or pass it on; how the server is asks nobody for a key."""
        app = self.app
        if _KEY and scope["type"] == "http" and scope["path"] != "/health":
            given = Headers(scope=scope).get("Authorization", "")
            if not secrets.compare_digest(given.encode(), f"Bearer {_KEY}".encode()):
                app = JSONResponse({"error": "a key is missing, or wrong"}, status_code=401)
        await app(scope, receive, send)
