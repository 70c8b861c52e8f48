"""From options to a sandbox."""

import asyncio
import functools
import logging
from collections.abc import Mapping
from typing import Final

from agentrl.config.seams import Seam
from agentrl.errors import ConfigError, SandboxError
from agentrl.extras import require
from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.docker import engine
from agentrl.sandboxes.errors import SandboxUnavailable
from agentrl.sandboxes.probe import Probe, probe_bwrap
from agentrl.sandboxes.types import DEFAULT_IMAGE, SandboxOptions

_log = logging.getLogger(__name__)

BACKENDS: Final[Mapping[str, str]] = {
    "bwrap": "agentrl.sandboxes.bwrap:BwrapSandbox",
    "docker": "agentrl.sandboxes.docker:DockerSandbox",
    "unsafe-local": "agentrl.sandboxes.local:UnsafeLocalSandbox",
    "fake": "agentrl.sandboxes.fake:FakeSandbox",
}
SANDBOXES: Final = Seam("sandbox", BACKENDS, "agentrl.sandboxes")


def make_sandbox(options: SandboxOptions | None = None) -> Sandbox:
    """A sandbox, not yet started; `auto` may take some seconds to look for a backend.

    Raises:
        ConfigError: There is no such backend.
        SandboxUnavailable: `auto` found none that works.
    """
    options = options or SandboxOptions()
    name = _choose_working_backend(options.image) if options.backend == "auto" else options.backend
    found = SANDBOXES.find(name)
    if not (isinstance(found, type) and issubclass(found, Sandbox)):
        raise ConfigError(f"sandbox {name} is no subclass of Sandbox; name a class that is")
    return found(options)


def check_backend(options: SandboxOptions) -> None:
    """Raise ConfigError if there is no such backend, or its library is not installed."""
    if options.backend not in (*BACKENDS, "auto"):
        SANDBOXES.find(options.backend)
    if options.backend == "docker":
        require("the sandbox backend docker", "docker")


async def survey() -> tuple[Probe, ...]:
    """What `auto` takes here, and what each backend that contains holds; each is started once."""
    try:
        chosen, works = await asyncio.to_thread(_choose_working_backend, DEFAULT_IMAGE), True
    except SandboxUnavailable as error:
        chosen, works = str(error), False
    found = [Probe(name="auto", works=works, detail=chosen)]
    for name in ("bwrap", "docker"):
        try:
            async with make_sandbox(SandboxOptions(backend=name)) as sandbox:
                held = ", ".join(sorted(sandbox.capabilities))
            found.append(Probe(name=name, works=True, detail=held))
        except SandboxError as error:
            found.append(Probe(name=name, works=False, detail=str(error)))
    return tuple(found)


@functools.cache
def _choose_working_backend(image: str) -> str:
    """Docker if it answers and has the image, else bwrap; never what contains nothing."""
    reasons: list[str] = []
    try:
        if engine().has_image(image):
            _log.info("sandboxes: docker")
            return "docker"
        reasons.append(f"docker has no image {image}: run `agentrl sandbox build`")
    except SandboxUnavailable as error:
        reasons.append(str(error))
    probe = probe_bwrap()
    if probe.works:
        _log.info("sandboxes: bwrap")
        return "bwrap"
    reasons.append(probe.detail)
    raise SandboxUnavailable(f"no sandbox works on this machine: {'; '.join(reasons)}")
