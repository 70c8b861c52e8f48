"""`agentrl sandbox list`: the sandboxes of this machine."""

from collections.abc import Sequence
from dataclasses import asdict

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.sandboxes.leftovers import Found, find_sandboxes


def _run_sandbox_list(options: JsonOption, arguments: Arguments) -> int:
    show_sandboxes(find_sandboxes(), options, "There are no sandboxes.")
    return 0


def show_sandboxes(found: Sequence[Found], options: JsonOption, nothing: str) -> None:
    """Print sandboxes; `nothing` if there are none."""
    lines = [
        f"{sandbox.backend:8} {sandbox.name:26} "
        f"{'left behind by' if sandbox.is_left_over else 'in use by'} process {sandbox.pid}"
        for sandbox in found
    ]
    options.show([asdict(sandbox) for sandbox in found], "\n".join(lines) or nothing)


COMMAND = Verb(
    summary="List the sandboxes that exist on this machine, and which are left over.",
    examples=["agentrl sandbox list", "agentrl sandbox list --json"],
    options=JsonOption,
    run=_run_sandbox_list,
)
