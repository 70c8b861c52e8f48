"""Every command in the documentation runs, in the order in which a reader meets it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preloaded import Preloaded

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
)
ELSEWHERE = {
    "make demo": "tests/e2e/test_learning.py",
    "make test": "this very run",
    "agentrl engine install sglang --cpu": "make sglang runs it",
    "agentrl train --env calculator --engine sglang --steps 3": "tests/e2e/test_sglang_train.py",
    "agentrl engine install vllm --cpu": "make vllm runs it",
    "agentrl train --env calculator --engine vllm --steps 3": "tests/e2e/test_vllm_train.py",
    "agentrl engine serve sglang --model tiny --port 30000": "tests/e2e/test_sglang_train.py",
    "agentrl engine serve local --model tiny --port 30001": "tests/contract/engine",
    "agentrl engine check http://127.0.0.1:30000 --model tiny": "tests/contract/engine",
    "agentrl train --env calculator --engine-url http://127.0.0.1:30000": "tests/contract/engine",
    "agentrl tasks build isodate==0.7.2 --tasks 5 --multiple 1": "tests/integration/swe",
    "agentrl env play swe_sandbox --sandbox bwrap": "tests/contract/sandbox/test_swe_sandbox.py",
    "agentrl env check swe_sandbox --sandbox bwrap": "tests/contract/sandbox/test_swe_sandbox.py",
    "agentrl eval --env swe_sandbox --sandbox bwrap --agent oracle": "make nightly",
    "agentrl train --env swe_sandbox --sandbox bwrap --model smollm2-135m --steps 1": (
        "make nightly, and with another model tests/contract/sandbox/test_swe_sandbox.py"
    ),
    "make venv": "this run's own environment",
    ". .venv/bin/activate": "the tests run with that environment's commands",
}
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLAIN = re.compile(r"agentrl [^|<>;&$`*?~#]*")
"""A command that needs no shell to be understood."""


def commands(page: Path) -> list[str]:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line.removeprefix("$ ") for line in lines]


def with_commands() -> list[Path]:
    return [page for page in PAGES if set(commands(page)) - ELSEWHERE.keys()]


def test_pages_are_found() -> None:
    names = {page.name for page in with_commands()}
    assert {"README.md", "cli.md", "configuration.md"} <= names


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", with_commands(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, preloaded: Preloaded) -> None:
    for name in ("examples", "benchmarks", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for command in commands(page):
        if command in ELSEWHERE:
            continue
        # The page that all begin with runs as it is typed, the others without its imports.
        if page.name == "README.md" or not PLAIN.fullmatch(command):
            done = in_a_shell(command, tmp_path)
        else:
            done = preloaded.run(shlex.split(command)[1:], tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def in_a_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
