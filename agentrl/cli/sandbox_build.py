"""`agentrl sandbox build`: the image of Docker sandboxes."""

from agentrl.cli.command import Arguments, Verb
from agentrl.config import Config
from agentrl.sandboxes.image import build
from agentrl.sandboxes.types import DEFAULT_IMAGE


def _run_sandbox_build(options: Config, arguments: Arguments) -> int:
    name = arguments.positional[0] if arguments.positional else DEFAULT_IMAGE
    print(f"{name} {build(name)}")
    return 0


COMMAND = Verb(
    summary="Build the image of Docker sandboxes from this machine's Debian packages; no registry "
    "is asked.",
    examples=["agentrl sandbox build", "agentrl sandbox build my-sandbox:latest"],
    takes=["[IMAGE]"],
    options=Config,
    run=_run_sandbox_build,
)
