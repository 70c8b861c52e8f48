import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


def test_the_page_about_groups_of_workers_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
