"""`agentrl algorithm show NAME`: formula, paper, options, needs and cost of one."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from agentrl.cli.command import Arguments, JsonOption, Verb

if TYPE_CHECKING:
    from agentrl.trainer.algorithms.catalogue import AlgorithmEntry


def _run_algorithm_show(options: JsonOption, arguments: Arguments) -> int:
    from agentrl.trainer.algorithms.catalogue import find_entries  # brings torch

    found = find_entries(arguments.positional[0])
    text = "\n\n".join(_render_algorithm_entry(entry) for entry in found)
    options.show([asdict(entry) for entry in found], text)
    return 0


def _render_algorithm_entry(entry: "AlgorithmEntry") -> str:
    chosen = ", ".join(f"{key}={value}" for key, value in entry.options.items())
    lines = [
        f"{entry.kind} {entry.name}: {entry.about}",
        *(["", entry.formula, ""] if entry.formula else []),
        f"paper    {entry.paper}",
        f"{'sets   ' if entry.kind == 'algorithm' else 'options'}  {chosen or 'none'}",
        f"needs    {', '.join(entry.needs) or 'nothing'}",
        f"cost     {entry.cost}",
        f"  {entry.command}",
    ]
    return "\n".join(lines)


COMMAND = Verb(
    summary="Show formula, paper, options, needs and cost of an algorithm or one of its functions.",
    examples=["agentrl algorithm show gspo", "agentrl algorithm show my_loss.py:mine"],
    options=JsonOption,
    run=_run_algorithm_show,
    takes=["NAME"],
)
