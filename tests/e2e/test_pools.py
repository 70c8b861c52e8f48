"""A run whose critic and reference lie in a pool of their own: warm start, steps, resume."""

import json
from pathlib import Path

import pytest

from tests.preloaded import Preloaded

RUN = """
name = "run"
steps = 2
threads = 1
[pools]
train = "1 x cpu"
value = "1 x cpu"
[roles]
actor = "train"
rollout = "train"
critic = "value"
reference = "value"
[rollout]
tasks_per_step = 4
[trainer]
algorithm = "ppo"
kl = {coef = 0.01, where = "reward"}
[warm_start]
updates = 10
passes = 1
[[env]]
name = "calculator"
"""


@pytest.mark.timeout(300)
def test_a_critic_and_a_reference_apart_train_and_are_resumed(
    tmp_path: Path, preloaded: Preloaded
) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    done = preloaded.run(["train", "run.toml"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/run/checkpoints/critic/step-000002").exists()
    more = preloaded.run(["train", "--resume", "run", "--steps", "3"], tmp_path)
    assert more.returncode == 0, more.stderr
    lines = (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["verified"] == 1 and step["sent_bytes"] > 0 for step in steps)
