"""`agentrl algorithm show NAME`: formula, paper, options, needs and cost of one."""

from dataclasses import asdict

from agentrl.cli.command import Arguments, JsonOption, Verb


def _run_algorithm_show(options: JsonOption, arguments: Arguments) -> int:
    from agentrl.trainer.algorithms.catalogue import find_entry  # brings torch

    entry = find_entry(arguments.positional[0])
    chosen = ", ".join(f"{key}={value}" for key, value in entry.options.items())
    lines = [
        f"{entry.kind} {entry.name}: {entry.about}\n\n{entry.formula}\n",
        f"paper    {entry.paper}",
        f"options  {chosen or 'none'}",
        f"needs    {', '.join(entry.needs) or 'nothing'}",
        f"cost     {entry.cost}",
        f"\n  {entry.command}",
    ]
    options.show(asdict(entry), "\n".join(lines))
    return 0


COMMAND = Verb(
    name="algorithm show",
    summary="Show formula, paper, options, needs and cost of an estimator or a loss.",
    examples=["agentrl algorithm show gspo"],
    options=JsonOption,
    run=_run_algorithm_show,
    takes=["NAME"],
)
