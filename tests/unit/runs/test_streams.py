import json
from pathlib import Path

import numpy as np
import pytest

from agentrl.errors import RunError
from agentrl.run_dir import EventsWriter, MetricsWriter, read_lines


def test_metrics_are_one_object_per_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, fsync=True) as writer:
        writer.write(1, {"reward": 0.5, "loss": np.float32(0.25)})
        writer.write(2, {"reward": float("nan")})
        assert read_lines(path) == [
            {"step": 1, "reward": 0.5, "loss": 0.25},
            {"step": 2, "reward": None},
        ]
    with MetricsWriter(path) as writer:
        writer.write(3, {})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_half_a_line_is_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1}\n{"step":2,"rew')
    assert read_lines(path) == [{"step": 1}]
    with MetricsWriter(path) as writer:
        writer.write(2, {})
    assert path.read_text() == '{"step":1}\n{"step":2}\n'


def test_metrics_of_later_steps_are_dropped_for_a_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        for step in range(1, 6):
            writer.write(step, {"x": step})
        writer.truncate_after(3)
        writer.write(4, {"x": 40})
        writer.truncate_after(9)
    assert [line["x"] for line in read_lines(path)] == [1, 2, 3, 40]


def test_events_carry_their_time_in_utc(tmp_path: Path) -> None:
    with EventsWriter(tmp_path / "events.jsonl") as writer:
        writer.write("resumed", step=3, path=tmp_path)
    (event,) = read_lines(tmp_path / "events.jsonl")
    assert str(event.pop("time")).endswith("+00:00")
    assert event == {"event": "resumed", "step": 3, "path": str(tmp_path)}


@pytest.mark.parametrize("line", ["nonsense", "[1]"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step":1}}\n{line}\n{{"step":2}}\n')
    with pytest.raises(RunError, match="line 2 is not"):
        read_lines(path)


def test_a_stream_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == []
