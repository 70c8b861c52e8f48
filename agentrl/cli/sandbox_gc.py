"""`agentrl sandbox gc`: remove what dead processes left behind."""

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.cli.sandbox_list import show_sandboxes
from agentrl.sandboxes.leftovers import collect_leftovers


def _run_sandbox_gc(options: JsonOption, arguments: Arguments) -> int:
    show_sandboxes(collect_leftovers(), options, "Nothing was left behind.")
    return 0


COMMAND = Verb(
    summary="Remove the sandboxes of processes that are gone; those in use stay.",
    examples=["agentrl sandbox gc"],
    options=JsonOption,
    run=_run_sandbox_gc,
)
