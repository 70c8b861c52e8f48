"""One seed of calculator learns in its time and its control does not: what `make demo` shows."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calculator_learns_and_permuted_rewards_teach_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "learning.py"), "--env", "calculator"]
    done = subprocess.run([*command, "--seeds", "0"], timeout=880, check=False)
    printed = capfd.readouterr().out
    with capfd.disabled():
        print(printed)
    assert done.returncode == 0, printed
    assert "permuted rewards" in printed
    assert "all seeds learned" in printed
