"""The table of docs/models.md is what its command makes, and a few rows of it are made again."""

from pathlib import Path

import pytest

from benchmarks.architectures import ARCHITECTURES
from benchmarks.models import HEADER, MAX_GAP, Found, measure, table_line, write_table
from tests.one_thread import one_thread

__all__ = ["one_thread"]
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def page_lines() -> list[str]:
    _, _, rest = PAGE.read_text().partition(HEADER)
    return rest.strip().split("\n")


def columns(line: str) -> list[str]:
    return [column.strip() for column in line.strip("|").split("|")]


def test_the_page_has_every_architecture_right_or_refused() -> None:
    lines = [columns(line) for line in page_lines()]
    assert [line[0] for line in lines] == list(ARCHITECTURES)
    assert len({kind for kind, _ in ARCHITECTURES.values()}) >= 45
    for _, engine, trainer, *rest in lines:
        if trainer:
            assert max(float(engine), float(trainer)) <= MAX_GAP
        else:
            assert len(engine.split()) > 5
            assert not any(rest)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "phi3 (long)", "lfm2"])
def test_a_row_is_made_again(name: str) -> None:
    found = measure(name)
    (line,) = (line for line in page_lines() if columns(line)[0] == name)
    if isinstance(found, Found):
        assert max(found.engine_gap, found.trainer_gap) < 1e-4
        # Gaps are roundings of one machine; the rest of the row is the same on each.
        assert columns(line)[3:] == columns(table_line(name, found))[3:]
    else:
        assert columns(line)[1] == found


def test_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{HEADER}\n| old | x |\n\nafter\n")
    write_table(page, [HEADER, "| new | y |"])
    assert page.read_text() == f"before\n\n{HEADER}\n| new | y |\n\nafter\n"
