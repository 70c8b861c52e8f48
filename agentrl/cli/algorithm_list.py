"""`agentrl algorithm list`: the built-in algorithms, estimators of advantages and policy losses."""

from dataclasses import asdict

from agentrl.cli.command import Arguments, JsonOption, Verb


def _run_algorithm_list(options: JsonOption, arguments: Arguments) -> int:
    from agentrl.trainer.algorithms.catalogue import entries  # brings torch

    found = list(entries())
    lines: list[str] = []
    for kind in ("algorithm", "estimator", "loss"):
        lines.append(f"--{kind}")
        for entry in (entry for entry in found if entry.kind == kind):
            needs = f" [{', '.join(entry.needs)}]" if entry.needs else ""
            lines.append(f"  {entry.name:22} {entry.paper:17} {entry.about}{needs}")
    options.show([asdict(entry) for entry in found], "\n".join(lines))
    return 0


COMMAND = Verb(
    summary="List the built-in algorithms, estimators and losses, with paper and needs.",
    examples=["agentrl algorithm list", "agentrl algorithm list --json"],
    options=JsonOption,
    run=_run_algorithm_list,
)
