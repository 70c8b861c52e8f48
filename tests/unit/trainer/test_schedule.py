import subprocess
import sys

import pytest

from agentrl.trainer import TrainerConfig
from agentrl.trainer.config import learning_rate


def rates(total_steps: int, **settings: object) -> list[float]:
    config = TrainerConfig.model_validate({"lr": 1.0, **settings})
    return [learning_rate(step, config, total_steps) for step in range(total_steps + 2)]


def test_schedules_by_hand() -> None:
    assert rates(3) == [1, 1, 1, 1, 1]
    assert rates(4, schedule="linear") == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0])
    assert rates(2, schedule="cosine") == pytest.approx([1, 0.5, 0, 0])
    assert rates(4, schedule="linear", warmup_steps=2) == pytest.approx([0.5, 1, 1, 0.5, 0, 0])


def test_a_warm_up_longer_than_the_run() -> None:
    assert rates(2, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1])


def test_settings_and_advantages_need_no_torch() -> None:
    code = "import sys, agentrl.trainer; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
