import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_path_of_the_page_is_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:agentrl|envs|tools|sandboxes|trainer)/[\w./]*)`", page)
    assert len(set(paths)) > 50
    assert [path for path in paths if not (ROOT / path).exists()] == []
