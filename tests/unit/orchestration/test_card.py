"""The evaluation that a model card names."""

from pathlib import Path

import orjson
import pytest

from agentrl.orchestration.export import (
    _describe_last_evaluation,  # pyright: ignore[reportPrivateUsage]  # a whole export needs a trained model
)
from agentrl.orchestration.load import load_run_config
from agentrl.run_dir import RunDirectory


@pytest.mark.parametrize(
    ("lines", "until", "said"),
    [
        ([{"eval/success": 0.25}, {"eval/success": 0.5}], 2, "success on 128 heldout tasks after"),
        ([{"eval/success": 0.5}, {"eval/success": 0.9}], 1, "after step 1: 0.500"),
        ([{"eval/reward": 0.5, "reward": 0.1}, {}], 2, "mean reward on 128 heldout tasks after"),
        ([{"reward": 0.5, "success": 0.25}], 1, "success of the training episodes after step 1"),
        ([{"reward": 0.5}], 1, "mean reward of the training episodes after step 1: 0.500"),
        ([{"reward": 0.5}], 0, "none"),
    ],
)
def test_it_is_one_of_the_exported_model(
    tmp_path: Path, lines: list[dict[str, float]], until: int, said: str
) -> None:
    with RunDirectory.create(tmp_path, "run") as directory:
        rows = (orjson.dumps({"step": i, **line}) + b"\n" for i, line in enumerate(lines, 1))
        directory.metrics.write_bytes(b"".join(rows))
        config = load_run_config(flags=["--env", "calculator"]).config
        assert said in _describe_last_evaluation(directory, config, until)
