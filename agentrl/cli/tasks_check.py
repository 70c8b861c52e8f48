"""`agentrl tasks check`: which tasks of a file can be trusted, before a run."""

from pathlib import Path

from pydantic import Field

from agentrl.boundary import one_line
from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.envs.swe.build.records import TASKS
from agentrl.envs.swe.repair import read_repairs
from agentrl.envs.swe.survey import survey
from agentrl.errors import ConfigError
from agentrl.sandboxes import SandboxOptions, run_sync


class TasksOptions(JsonOption):
    """Where the tasks are played."""

    sandbox: str = Field(default="auto", description="The backend.")
    repos: str = Field(
        default="", description="A folder with a clone OWNER__NAME of each repository."
    )
    image_root: str = Field(default="/testbed", description="Where images have the repository.")


def _run_tasks_check(options: TasksOptions, arguments: Arguments) -> int:
    if len(arguments.positional) > 1:
        raise ConfigError(f"got {len(arguments.positional)} files, expected one")
    file = Path(arguments.positional[0]) if arguments.positional else TASKS
    repairs, unreadable = read_repairs(str(file), options.repos, options.image_root, True)
    found = run_sync(survey([*repairs.values()], SandboxOptions(backend=options.sandbox)))
    bad = [task for task in found if task.problem]
    bare = [task.repair.id for task in found if not task.problem and not task.guarded]
    guarded = len(found) - len(bad) - len(bare)
    problems = [*unreadable, *(task.problem for task in bad)]
    lines = [f"bad        {one_line(problem)}" for problem in problems]
    lines += [f"unguarded  {name}" for name in bare]
    lines.append(f"{guarded} guarded, {len(bare)} unguarded, {len(problems)} bad")
    options.show({"guarded": guarded, "unguarded": bare, "bad": problems}, "\n".join(lines))
    return 1 if problems or not guarded else 0


COMMAND = Verb(
    summary="Say which repair tasks of a file are guarded by decoys, and which cannot be graded.",
    examples=["agentrl tasks check", "agentrl tasks check tasks.jsonl --sandbox bwrap"],
    options=TasksOptions,
    run=_run_tasks_check,
    takes=["[FILE]"],
)
