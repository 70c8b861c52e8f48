"""`agentrl run simulate RUN`: what other settings of the schedule would give."""

from collections.abc import Callable
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig

if TYPE_CHECKING:
    from agentrl.testing.virtual_clock import Simulated, Workload

Number = TypeVar("Number", int, float)


class SimulateOptions(JsonOption):
    """The options of `run simulate`."""

    staleness: str = Field(default="0,1,4", description="Values of async.staleness to try.")
    concurrency: str = Field(default="64", description="Values of rollout.concurrency to try.")
    overprovision: str = Field(default="1", description="Values of rollout.overprovision to try.")
    stragglers: str = Field(default="0", description="Values of rollout.stragglers to try.")
    steps: int = Field(default=200, ge=1, description="Steps of each simulated run.")
    seed: int = Field(default=0, description="Of the draws.")
    runs_dir: str = Field(
        default=str(RunConfig.model_fields["runs_dir"].default),
        description="Folder that holds the runs.",
    )


def _run_simulate(options: SimulateOptions, arguments: Arguments) -> int:
    from agentrl.rollout.admission import num_groups
    from agentrl.schedule import Allowance, Schedule
    from agentrl.testing.virtual_clock import simulate

    if "auto" in options.concurrency.split(","):
        raise ConfigError(
            "--concurrency: got 'auto', expected integers: it goes by the engine's cache, and a "
            "recorded run does not say how much that holds"
        )
    values = product(
        _split_numbers(int, "--concurrency", options.concurrency, least=1),
        _split_numbers(float, "--overprovision", options.overprovision, least=1),
        _split_numbers(float, "--stragglers", options.stragglers, least=0),
        _split_numbers(int, "--staleness", options.staleness, least=0),
    )
    workload, groups, members = _read_workload(Path(options.runs_dir), arguments.positional[0])
    rows: list[dict[str, float]] = []
    for concurrency, overprovision, stragglers, staleness in values:
        schedule = Schedule(
            groups_per_step=groups,
            members=members,
            steps=options.steps,
            staleness=staleness,
            concurrency=concurrency,
            late="drop" if overprovision > 1 else "wait",
        )
        surplus = num_groups(groups, overprovision) - groups
        allowance = Allowance(surplus=surplus, stragglers=stragglers)
        run = simulate(schedule, workload, allowance, seed=options.seed)
        tried = {"overprovision": overprovision, "stragglers": stragglers}
        rows.append(_describe_simulated(run, staleness, concurrency) | tried)
    for row in rows:
        row["speed_up"] = rows[0]["step_s"] / row["step_s"] if row["step_s"] else 1.0
    options.show(rows, _render_simulated_rows(rows))
    return 0


def _split_numbers(
    kind: Callable[[str], Number], flag: str, text: str, *, least: int
) -> list[Number]:
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number < inf for number in numbers):
        raise ConfigError(
            f"{flag}: got {text!r}, expected {'integers' if kind is int else 'numbers'} of at "
            f"least {least} with commas between them"
        )
    return list(dict.fromkeys(numbers))


def _read_workload(root: Path, run: str) -> "tuple[Workload, int, int]":
    """What a run recorded, its groups per step and the members of one."""
    from agentrl.run_dir import RunDirectory, read_lines
    from agentrl.testing.virtual_clock import Workload

    directory = RunDirectory.open(root, run)
    files = sorted(directory.episodes.glob("step-*.parquet"))
    steps = [line for line in read_lines(directory.metrics) if "train_s" in line]
    tables = [_read_times_of_episodes(file) for file in files]
    episodes: list[list[float]] = [
        [g + e for g, e in zip(row["turn_generate_s"], row["turn_environment_s"], strict=True)]
        for rows in tables
        for row in rows
    ]
    turns = [seconds for episode in episodes for seconds in episode]
    if not turns or not steps:
        raise ConfigError(
            f"{directory.path}: has no recorded step to draw times from, expected "
            "episodes/step-*.parquet and metrics.jsonl of a run that trained"
        )

    def draw_turn(rng: Random) -> float:
        return rng.choice(turns)

    def draw_length(rng: Random) -> int:
        return max(1, len(rng.choice(episodes)))  # some ended before their first turn

    workload = Workload(
        num_turns=draw_length,
        turn_s=draw_turn,
        train_s=mean(cast(float, step["train_s"]) for step in steps),
        publish_s=mean(cast(float, step.get("publish_s", 0.0)) for step in steps),
    )
    groups = max(len({row["group"] for row in rows}) for rows in tables)
    members = 1 + max(row["member"] for rows in tables for row in rows)
    return workload, groups, members


def _read_times_of_episodes(file: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = ["group", "member", "turn_generate_s", "turn_environment_s"]
    try:
        table: pa.Table = cast(Any, pq).read_table(file, columns=columns, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{file}: cannot be read as Parquet ({why}); move it away to go by the others"
        ) from error
    return table.to_pylist()


def _describe_simulated(run: "Simulated", staleness: int, concurrency: int) -> dict[str, float]:
    return {
        "staleness": staleness,
        "concurrency": concurrency,
        "step_s": run.step_s,
        "trainer_busy": run.trainer_busy,
        "engine_busy": run.engine_busy,
        "staleness_mean": mean(run.staleness) if run.staleness else 0.0,
        "staleness_max": run.staleness_at(1.0),
        "lost": len(run.lost) / max(1, len(run.lost) + len(run.trained)),
    }


def _render_simulated_rows(rows: list[dict[str, float]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    heads = ("staleness", "concurrency", "groups", "stragglers", "s a step", "speed-up")
    for head in (*heads, "trainer busy", "engine busy", "stale mean", "max", "lost"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            f"{row['staleness']}",
            f"{row['concurrency']}",
            f"{row['overprovision']:g}x",
            f"{row['stragglers']:g}",
            f"{row['step_s']:.3g}",
            f"{row['speed_up']:.2f}x",
            f"{row['trainer_busy']:.0%}",
            f"{row['engine_busy']:.0%}",
            f"{row['staleness_mean']:.2f}",
            f"{row['staleness_max']}",
            f"{row['lost']:.0%}",
        )
    console = Console(width=140, color_system=None)
    with console.capture() as shown:
        console.print(table)
    return shown.get().rstrip("\n")


COMMAND = Verb(
    summary="Say what other values of staleness and concurrency would give, by a recorded run.",
    examples=["agentrl run simulate last", "agentrl run simulate last --staleness 0,1,4 --json"],
    options=SimulateOptions,
    run=_run_simulate,
    takes=["RUN"],
)
