"""Each row of the table in docs/environments.md is a test, and each such test is a row."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("environment", "placement", "lifetime")
ROW = re.compile(
    r"`(tests/contract/test_(?:environment|placement|lifetime)_contract\.py::test_\w+)`"
)


def test_the_table_and_the_tests_match() -> None:
    rows = ROW.findall((ROOT / "docs" / "environments.md").read_text())
    tests: list[str] = []
    for name in FILES:
        path = f"tests/contract/test_{name}_contract.py"
        source = (ROOT / path).read_text()
        found = re.findall(r"^(?:async )?def (test_\w+)", source, flags=re.MULTILINE)
        tests += [f"{path}::{test}" for test in found]
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(tests)
