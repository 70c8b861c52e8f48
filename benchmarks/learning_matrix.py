"""Does it learn whatever the seed and the processor? Eight seeds by seven ways to compute.

`ATEN_CPU_CAPABILITY` chooses the instructions of torch's own kernels; those of matrix products are
chosen by variables of their libraries, in a column of its own. So a column computes what another
processor would, up to the order of its sums. Each cell is one run in a process of its own and one
line of the results file. A matrix that was stopped goes on with the cells that the file lacks;
another recipe's cells in it do not count. The first eight cells have every seed and every column.

The exit code says whether each cell meets the bar, and their mean.

Usage: python benchmarks/learning_matrix.py RESULTS [--env calculator] [--cells 56] [--jobs 1]
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.orchestration.evaluate import Interval
from agentrl.orchestration.load import load_run_config
from benchmarks.learning import CPU_BAR_S, FLAGS, MOST_BEFORE, learn, settings

SEEDS = 8
LEAST_MEAN = 0.98
LEAST = 0.96
_OTHER_PRODUCTS = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
COLUMNS: Sequence[tuple[str, Mapping[str, str], int]] = [
    ("best, 1 thread", {}, 1),
    ("avx2, 1 thread", {"ATEN_CPU_CAPABILITY": "avx2"}, 1),
    ("default, 1 thread", {"ATEN_CPU_CAPABILITY": "default"}, 1),
    ("other products, 1 thread", _OTHER_PRODUCTS, 1),
    ("best, 2 threads", {}, 2),
    ("avx2, 2 threads", {"ATEN_CPU_CAPABILITY": "avx2"}, 2),
    ("default, 2 threads", {"ATEN_CPU_CAPABILITY": "default"}, 2),
]
"""Name, environment variables and threads."""
CHOSEN_BY = ("ATEN_CPU_CAPABILITY", *_OTHER_PRODUCTS)
CELLS = SEEDS * len(COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one run came to."""

    env: str
    recipe: str
    number: int
    before: tuple[float, float, float]
    """Success with its interval's ends, as in `after`."""
    after: tuple[float, float, float]
    cpu_s: float


def place(number: int) -> tuple[int, int]:
    """Column and seed of a cell: along the diagonal, which meets all for 7 and 8 are coprime."""
    return number % len(COLUMNS), number % SEEDS


def recipe(env: str) -> str:
    """A digest of all that is no default, so that another recipe's cells are not taken for its."""
    flags = [*settings(env, 0, Path("runs")), *FLAGS[env]]
    config = load_run_config(flags=flags).config
    settled = config.model_dump_json(exclude_defaults=True, exclude={"runs_dir"})
    return hashlib.blake2b(settled.encode(), digest_size=6).hexdigest()


def run_cell(env: str, results: Path, number: int) -> None:
    """Train once in this process and add a line to the results."""
    column, seed = place(number)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AGENTRL_CACHE"] = f"{folder}/cache"  # so that the warm start is timed too
        curve = learn(env, seed, Path(folder), threads=COLUMNS[column][2])
    cell = Cell(
        env=env,
        recipe=recipe(env),
        number=number,
        before=(curve.warm.value, curve.warm.low, curve.warm.high),
        after=(curve.final.value, curve.final.low, curve.final.high),
        cpu_s=round(curve.cpu_s, 1),
    )
    with results.open("ab") as file:
        file.write(orjson.dumps(asdict(cell), option=orjson.OPT_APPEND_NEWLINE))


def start_cell(env: str, results: Path, number: int) -> None:
    """Run a cell in a process that computes as its column says."""
    variables = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY}
    command = [sys.executable, __file__, str(results), "--env", env, "--cell", str(number)]
    variables.update(COLUMNS[place(number)[0]][1])
    subprocess.run(command, env=variables, check=True)


def finished(env: str, results: Path) -> dict[int, Cell]:
    """The cells of this environment and recipe that the file has, by their number."""
    if not results.exists():
        return {}
    cells = [Cell(**orjson.loads(line)) for line in results.read_bytes().splitlines()]
    current = recipe(env)
    return {cell.number: cell for cell in cells if (cell.env, cell.recipe) == (env, current)}


def misses(env: str, cells: Sequence[Cell]) -> list[str]:
    """What the cells miss; nothing if they meet the bar."""
    average = mean(cell.after[0] for cell in cells)
    found = [] if average >= LEAST_MEAN else [f"the mean is {average:.3f}, below {LEAST_MEAN}"]
    for cell in cells:
        column, seed = place(cell.number)
        name = f"seed {seed}, {COLUMNS[column][0]}"
        if cell.before[0] > MOST_BEFORE:
            found.append(f"{name}: starts at {cell.before[0]:.3f}, above {MOST_BEFORE}")
        if cell.after[0] < LEAST:
            found.append(f"{name}: ends at {cell.after[0]:.3f}, below {LEAST}")
        if cell.cpu_s > CPU_BAR_S[env]:
            found.append(f"{name}: took {cell.cpu_s:.0f} CPU s, more than {CPU_BAR_S[env]:.0f}")
    return found


def show_columns(cells: Sequence[Cell]) -> None:
    """A line for each cell, and for each column its mean and its least."""
    for index, (name, _, _) in enumerate(COLUMNS):
        column = sorted(
            (place(cell.number)[1], cell) for cell in cells if place(cell.number)[0] == index
        )
        for seed, cell in column:
            before, after = Interval(*cell.before), Interval(*cell.after)
            print(f"{name:24s} seed {seed}   {before} -> {after}   {cell.cpu_s:4.0f} CPU s")
        ends = [cell.after[0] for _, cell in column]
        if ends:
            print(f"{name:24s} {len(ends)} seeds   mean {mean(ends):.4f}, least {min(ends):.3f}")


def main() -> int:
    """Run the cells that are not in the file; 0 if all of them meet the bar."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("results", type=Path, help="a line for each finished cell")
    parser.add_argument("--env", default="calculator", choices=sorted(CPU_BAR_S))
    parser.add_argument("--cells", type=int, default=CELLS, help="only so many, from the first")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--cell", type=int, help="only this one, in this process")
    arguments = parser.parse_args()
    env: str = arguments.env
    results: Path = arguments.results
    if arguments.cell is not None:
        run_cell(env, results, arguments.cell)
        return 0
    wanted = range(min(arguments.cells, CELLS))
    missing = sorted(set(wanted) - finished(env, results).keys())
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(partial(start_cell, env, results), missing))
    cells = [cell for number, cell in sorted(finished(env, results).items()) if number in wanted]
    show_columns(cells)
    missed = misses(env, cells)
    print("\n".join(missed or [f"{len(cells)} cells meet the bar"]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
