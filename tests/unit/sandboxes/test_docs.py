import re
from pathlib import Path

import pytest

from agentrl.testing.sandbox_attacks import ATTACKS
from agentrl.testing.sandbox_table import BEGIN, END, put

PAGE = Path(__file__).parents[3] / "docs" / "sandboxes.md"


def test_the_table_has_every_attack_and_says_what_is_true() -> None:
    """What it says is a recorded run; tests/contract/sandbox proves it again."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == [attack.name for attack in ATTACKS]
    assert {tuple(row[2:]) for row in rows} == {("gets through", "contained", "contained")}
    assert put(f"a\n{BEGIN}old{END}z\n", "new\n") == f"a\n{BEGIN}new\n{END}z\n"


@pytest.mark.bwrap
def test_the_first_example_runs() -> None:
    example = re.search("```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    exec(compile(example[1], PAGE.name, "exec"), {})
