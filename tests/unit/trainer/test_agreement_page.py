"""docs/algorithms.md has what the benchmark holds against TRL, no more and no less."""

from pathlib import Path

from benchmarks.trl_agreement import PAIRS

PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


def test_the_table_has_each_comparison_with_its_equation() -> None:
    _, _, rest = PAGE.read_text().partition("| ours | TRL | theirs is |\n|---|---|---|\n")
    rows, _, _ = rest.partition("\n\n")
    assert rows.split("\n") == [pair.row for pair in PAIRS]
