"""`agentrl algorithm list`: the built-in algorithms, and the functions that they are made of."""

from dataclasses import asdict

from agentrl.cli.command import Arguments, JsonOption, Verb


def _run_algorithm_list(options: JsonOption, arguments: Arguments) -> int:
    from agentrl.trainer.algorithms.catalogue import KINDS, entries  # brings torch

    found = list(entries())
    lines: list[str] = []
    for kind, flag in {"algorithm": "--algorithm", **{k: f for k, (f, _) in KINDS.items()}}.items():
        lines.append(flag)
        for entry in (entry for entry in found if entry.kind == kind):
            needs = f" [{', '.join(entry.needs)}]" if entry.needs else ""
            lines.append(f"  {entry.name:22} {entry.paper:17} {entry.about}{needs}")
    options.show([asdict(entry) for entry in found], "\n".join(lines))
    return 0


COMMAND = Verb(
    summary="List the built-in algorithms and the functions that they are made of.",
    examples=["agentrl algorithm list", "agentrl algorithm list --json"],
    options=JsonOption,
    run=_run_algorithm_list,
)
