"""docs/extending.md shows the files of examples/extending, each of them short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/extending.md").read_text()
SHOWN = re.findall(r"^`(examples/extending/\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.M | re.S)
FILES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "examples/extending").glob("*.py"))


def test_each_file_is_shown_once_and_used() -> None:
    assert sorted(name for name, _ in SHOWN) == FILES
    assert TEXT.count("```python") == len(SHOWN)
    for name in FILES:
        assert f"{name}:" in TEXT.replace(f"`{name}`:", "")


@pytest.mark.parametrize(("name", "code"), SHOWN, ids=[name for name, _ in SHOWN])
def test_it_is_shown_as_it_is(name: str, code: str) -> None:
    assert code == (ROOT / name).read_text()
    assert len(code.splitlines()) <= 30
