"""`agentrl tasks build`: repair tasks from Python packages that have tests."""

import sys
from collections import Counter
from pathlib import Path

from pydantic import Field

from agentrl.boundary import short_path
from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.envs.swe.build.builder import Built, build, split
from agentrl.envs.swe.build.recipe import SHIPPED, RecipeEntry, read_recipe
from agentrl.envs.swe.build.records import write_records
from agentrl.errors import ConfigError
from agentrl.run_dir.writing import write_text_atomic


class BuildOptions(JsonOption):
    """What to build."""

    recipe: Path | None = Field(
        default=None, description="A TOML file with packages; default: the one that comes along."
    )
    out: Path = Field(default=Path("tasks.jsonl"), description="Where the records go.")
    tasks: int = Field(default=10, ge=1, description="Tasks of each PACKAGE.")
    multiple: int = Field(default=2, ge=0, description="Of them with two bugs.")
    tests: tuple[str, ...] = Field(default=(), description="Arguments of pytest; default: all.")
    requires: tuple[str, ...] = Field(default=(), description="What the tests import, for pip.")
    seed: int = Field(default=0, description="Chooses which bugs.")


def _run_tasks_build(options: BuildOptions, arguments: Arguments) -> int:
    entries = _read_recipe_entries(options, arguments.positional)
    to = sys.stderr if options.as_json else sys.stdout

    def say(line: str) -> None:
        print(line, file=to, flush=True)

    built: list[Built] = []
    for entry in entries:
        built.append(build(entry, seed=options.seed, say=say))
        # After each package, so that an interruption loses one at most.
        packages = split(b.package for b in built)
        tasks = [task for b in built for task in b.tasks]
        write_text_atomic(options.out, write_records(packages, tasks))
    dropped = sum((Counter(b.dropped) for b in built), Counter[str]())
    counts = {b.package.package: len(b.tasks) for b in built}
    lines = [f"  {count:4} dropped: {reason}" for reason, count in dropped.most_common()]
    out = short_path(str(options.out))
    lines.append(f"{sum(counts.values())} tasks of {len(counts)} packages are in {out}")
    options.show({"out": options.out, "tasks": counts, "dropped": dropped}, "\n".join(lines))
    return 0 if all(counts.values()) else 1


def _read_recipe_entries(
    options: BuildOptions, packages: tuple[str, ...]
) -> tuple[RecipeEntry, ...]:
    if not packages:
        return read_recipe(options.recipe or SHIPPED)
    if options.recipe is not None:
        raise ConfigError(f"got the recipe {options.recipe} and {packages[0]}; give one of the two")
    return tuple(
        RecipeEntry(
            source=source,
            tests=options.tests,
            requires=options.requires,
            tasks=options.tasks,
            multiple=min(options.multiple, options.tasks - 1),
        )
        for source in packages
    )


COMMAND = Verb(
    summary="Turn Python packages that have tests into validated repair tasks.",
    examples=[
        "agentrl tasks build isodate==0.7.2 --tasks 5",
        "agentrl tasks build path/to/a/package --tests tests/unit --out mine.jsonl",
        "agentrl tasks build --out tasks.jsonl",
    ],
    options=BuildOptions,
    run=_run_tasks_build,
    takes=["[PACKAGE...]"],
)
