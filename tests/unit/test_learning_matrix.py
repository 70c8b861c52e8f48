"""The matrix of learning: which cells it has, and what it takes for a miss."""

from pathlib import Path

from benchmarks.learning_matrix import CELLS, COLUMNS, SEEDS, Cell, finished, misses, place, recipe

COLUMNS_AND_SEEDS = {(column, seed) for column in range(len(COLUMNS)) for seed in range(SEEDS)}


def cell(number: int, *, after: float = 0.99, before: float = 0.4, cpu_s: float = 100.0) -> Cell:
    return Cell(
        env="calculator",
        recipe="",
        number=number,
        before=(before, before, before),
        after=(after, after, after),
        cpu_s=cpu_s,
    )


def test_every_seed_meets_every_column_once_and_all_of_them_early() -> None:
    assert {place(number) for number in range(CELLS)} == COLUMNS_AND_SEEDS
    early = [place(number) for number in range(SEEDS)]
    assert {column for column, _ in early} == set(range(len(COLUMNS)))
    assert {seed for _, seed in early} == set(range(SEEDS))


def test_good_cells_miss_nothing() -> None:
    assert not misses("calculator", [cell(0), cell(1, after=0.97)])


def test_each_bar_is_held() -> None:
    assert misses("calculator", [cell(0, after=0.979)]) == ["the mean is 0.979, below 0.98"]
    (low,) = misses("calculator", [cell(8, after=0.959), *map(cell, range(5))])
    assert low == "seed 0, avx2, 1 thread: ends at 0.959, below 0.96"
    (easy,) = misses("calculator", [cell(0, before=0.51)])
    assert easy == "seed 0, best, 1 thread: starts at 0.510, above 0.5"
    (slow,) = misses("calculator", [cell(6, cpu_s=241.0)])
    assert slow == "seed 6, default, 2 threads: took 241 CPU s, more than 240"


def test_cells_of_another_recipe_do_not_count(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    line = (
        '{"env":"calculator","recipe":"%s","number":%d,"before":[0.4,0.4,0.4],'
        '"after":[0.99,0.99,0.99],"cpu_s":100.0}\n'
    )
    results.write_text(line % ("old", 1) + line % (recipe("calculator"), 2))
    assert list(finished("calculator", results)) == [2]
    assert not finished("number_guess", results)
