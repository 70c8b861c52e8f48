"""A backend of your own: sandboxes that a hosted provider runs. README.md shows its use."""

import asyncio
import base64
import contextlib
import os
from typing import Any

import httpx

from agentrl.sandboxes import Command, ExecResult, SandboxDied, SandboxUnavailable
from agentrl.sandboxes.base import Sandbox

MARGIN_S = 30.0
"""More time than a command: for the way there and back."""


class RemoteSandbox(Sandbox):
    """Everything but sessions, over four requests; files are read and written by commands."""

    name = "remote"

    @property
    def url(self) -> str:
        return os.environ.get("SANDBOX_URL", "http://127.0.0.1:8700")

    async def _start_backend(self) -> None:
        made = await self._ask("POST", "/sandboxes", self.limits.model_dump())
        self._box = f"/sandboxes/{made['id']}"
        self.capabilities = frozenset(made["capabilities"]) - {"mounts"}
        if self.options.base is not None:
            await self.upload(self.options.base)

    def _destroy_backend(self) -> None:
        if hasattr(self, "_box"):
            # It runs in a thread, or at the end of the process, so it blocks. What cannot be
            # reached has to end by a limit of the provider's own.
            with contextlib.suppress(httpx.HTTPError):
                httpx.delete(f"{self.url}{self._box}", timeout=self.deadline_s)

    async def kill_leftovers(self) -> None:
        await self._ask("POST", f"{self._box}/kill", {})

    async def _run_command_in_backend(self, command: Command) -> ExecResult:
        wanted = {
            "argv": command.argv,
            "cwd": command.cwd,
            "env": command.env,
            "stdin": base64.b64encode(command.stdin).decode(),
            "timeout_s": command.timeout_s,
            "max_output": command.max_output,
        }
        said = await self._ask("POST", f"{self._box}/exec", wanted, command.timeout_s)
        for stream in ("stdout", "stderr"):
            said[stream] = base64.b64decode(said[stream])
        return ExecResult(**said)

    async def _ask(
        self, method: str, path: str, body: dict[str, Any], timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """Ask the provider; what goes wrong on the way is never a command's result."""
        try:
            async with httpx.AsyncClient(timeout=timeout_s + MARGIN_S) as client:
                asking = asyncio.create_task(client.request(method, self.url + path, json=body))
                try:
                    await self._wait_while_provider_lives(asking, client)
                    answer = await asking
                finally:
                    asking.cancel()
        except httpx.HTTPError as error:
            raise SandboxUnavailable(
                f"the provider at {self.url} does not answer: {error!r}"
            ) from error
        if answer.status_code == 404:
            raise SandboxDied("the provider does not know this sandbox any more")
        if answer.is_error:
            raise SandboxUnavailable(
                f"the provider answered {answer.status_code}: {answer.text[:200]}"
            )
        return answer.json() if answer.content else {}

    async def _wait_while_provider_lives(
        self, asking: asyncio.Task[httpx.Response], client: httpx.AsyncClient
    ) -> None:
        """A command may take its time; that the provider is there is asked meanwhile."""
        pause_s = self.deadline_s / 2
        while not (await asyncio.wait([asking], timeout=pause_s))[0]:
            try:
                await client.get(f"{self.url}/health", timeout=pause_s)
            except httpx.TimeoutException:
                raise SandboxDied(
                    f"the provider at {self.url} gave no sign of life for {self.deadline_s:g} s"
                ) from None
