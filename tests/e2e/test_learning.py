"""One seed of calculator learns, within its time; `make demo` shows the control beside it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calculator_learns(capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "learning.py"), "--env", "calculator"]
    done = subprocess.run([*command, "--seeds", "0", "--no-control"], timeout=880, check=False)
    printed = capfd.readouterr().out
    with capfd.disabled():
        print(printed)
    assert done.returncode == 0, printed
    assert "all seeds meet the bar" in printed
