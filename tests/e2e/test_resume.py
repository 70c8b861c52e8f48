"""SIGKILL at any moment, then --resume: the same tasks and bit-identical weights."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.kill_driver import POINTS, STEPS

RANDOM_KILLS = 3
DRIVER = Path(__file__).parent / "kill_driver.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    points = [*POINTS, *["random"] * (RANDOM_KILLS - 1)]
    command = [sys.executable, str(DRIVER), str(tmp_path_factory.mktemp("kills")), *points]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [orjson.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(900)
def test_every_point_kills_and_every_run_is_finished(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        if outcome["point"] not in ("never", "random"):
            assert outcome["killed"], outcome["point"]
            assert outcome["resumed"] == 1, outcome["point"]
        assert outcome["steps"] == list(range(1, STEPS + 1)), outcome["point"]
        assert outcome["leftovers"] == [], outcome["point"]


@pytest.mark.timeout(900)
def test_the_same_tasks_were_trained(outcomes: list[dict[str, Any]]) -> None:
    whole = outcomes[0]
    assert sum(whole["tasks"].values()) == 5 * 4 * STEPS
    epoch = Counter(key.split(":")[1] for key in whole["tasks"] if int(key.split(":")[0]) <= 2)
    assert set(epoch.values()) == {4}  # ten tasks, five a step: two steps are an epoch
    for outcome in outcomes[1:]:
        assert outcome["tasks"] == whole["tasks"], outcome["point"]


@pytest.mark.timeout(900)
def test_the_weights_are_bit_identical(outcomes: list[dict[str, Any]]) -> None:
    assert {outcome["weights"] for outcome in outcomes} == {outcomes[0]["weights"]}
