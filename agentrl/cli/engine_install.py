"""`agentrl engine install`: a server in an environment of its own."""

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb, check_name
from agentrl.engine.servers.install import Flavour
from agentrl.orchestration.kinds import SERVERS


class InstallOptions(JsonOption):
    """How to install."""

    cpu: bool = Field(
        default=False, description="For a machine without a GPU: 2 to 3 GB instead of over 10."
    )


def _run_engine_install(options: InstallOptions, arguments: Arguments) -> int:
    check_name(arguments.positional[0], tuple(SERVERS), "installed")
    product = SERVERS[arguments.positional[0]].product
    flavour: Flavour = "cpu" if options.cpu else "gpu"
    if options.as_json:
        found = product.install(flavour)
    else:
        found = product.install(flavour, lambda line: print(line))
    options.show(
        {"folder": found.folder, "flavour": found.flavour, "version": product.version},
        f"{product.title} {product.version} for a {found.flavour.upper()} is in {found.folder}",
    )
    return 0


COMMAND = Verb(
    summary="Install an engine's server into an environment of its own.",
    examples=[
        "agentrl engine install sglang --cpu",
        "agentrl engine install vllm --cpu",
        "agentrl engine install sglang",
    ],
    options=InstallOptions,
    run=_run_engine_install,
    takes=["ENGINE"],
)
