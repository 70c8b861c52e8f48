import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.cli import main


def record_run(folder: Path, slow: int = 1) -> None:
    """A step of 2 groups of 2, of two turns of a second; training takes 3 s, publishing half.

    An episode takes so many times as long.
    """
    (folder / "episodes").mkdir(parents=True)
    (folder / "config.toml").touch()
    rows = [
        {
            "group": g,
            "member": m,
            "turn_generate_s": [0.75] * 2 * (slow if g == m == 0 else 1),
            "turn_environment_s": [0.25] * 2 * (slow if g == m == 0 else 1),
        }
        for g in range(2)
        for m in range(2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "episodes/step-000001.parquet")  # pyright: ignore[reportUnknownMemberType]  # its stub is partial
    (folder / "metrics.jsonl").write_text('{"step": 1, "train_s": 3.0, "publish_s": 0.5}\n')


def test_a_table_says_what_to_expect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path / "mine")
    arguments = ["run", "simulate", "mine", "--runs-dir", str(tmp_path), "--staleness", "0,1"]
    assert main([*arguments, "--concurrency", "4,2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["concurrency"], row["staleness"]) for row in rows] == [
        *((4, 0), (4, 1)),
        *((2, 0), (2, 1)),
    ]
    assert rows[0]["step_s"] == pytest.approx(2.0 + 3.5)
    assert rows[1]["step_s"] == pytest.approx(3.5, rel=0.01)
    assert rows[2]["step_s"] == pytest.approx(4.0 + 3.5)
    assert rows[1]["speed_up"] == pytest.approx(5.5 / 3.5, rel=0.01)
    assert [row["staleness_max"] for row in rows] == [0, 1, 0, 1]
    assert main(arguments) == 0
    assert "speed-up" in capsys.readouterr().out


def test_what_is_begun_beyond_need_and_stopped_is_told_as_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(tmp_path / "mine", slow=3)
    arguments = ["run", "simulate", "mine", "--runs-dir", str(tmp_path), "--staleness", "0"]
    assert main([*arguments, "--overprovision", "1,2", "--stragglers", "0,0.5", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    tried = [(row["overprovision"], row["stragglers"]) for row in rows]
    assert tried == [(1, 0), (1, 0.5), (2, 0), (2, 0.5)]
    plain, impatient, more, both = rows
    assert plain["lost"] == 0 < impatient["lost"] < 0.5
    assert more["lost"] == pytest.approx(0.5)
    assert both["speed_up"] > max(more["speed_up"], impatient["speed_up"]) > 1.2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["empty"], "has no recorded step to draw times from"),
        (["empty", "--staleness", "0,x"], "--staleness: got '0,x', expected integers"),
        (["empty", "--concurrency", "8,auto"], "a recorded run does not say how much that holds"),
        (["empty", "--concurrency", "0"], "--concurrency: got '0', expected integers"),
        (["empty", "--stragglers", "nan"], "--stragglers: got 'nan', expected numbers of at"),
        (["empty", "--overprovision", "0.5"], "--overprovision: got '0.5', expected numbers of at"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.toml").touch()
    assert main(["run", "simulate", *arguments, "--runs-dir", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


def test_a_value_that_is_given_twice_is_tried_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(tmp_path / "mine")
    arguments = ["mine", "--runs-dir", str(tmp_path), "--staleness", "1,0,1", "--json"]
    assert main(["run", "simulate", *arguments]) == 0
    assert [row["staleness"] for row in json.loads(capsys.readouterr().out)] == [1, 0]


@pytest.mark.parametrize("other_columns", [True, False])
def test_a_damaged_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other_columns: bool
) -> None:
    record_run(tmp_path / "mine")
    file = tmp_path / "mine/episodes/step-000002.parquet"
    if other_columns:
        pq.write_table(pa.table({"a": [1]}), file)  # pyright: ignore[reportUnknownMemberType]  # its stub is partial
    else:
        file.write_bytes((tmp_path / "mine/episodes/step-000001.parquet").read_bytes()[:-9])
    assert main(["run", "simulate", "mine", "--runs-dir", str(tmp_path)]) == 2
    assert f"{file}: cannot be read as Parquet" in capsys.readouterr().err


def test_an_episode_that_ended_before_its_first_turn_counts_as_one_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(tmp_path / "mine", slow=0)
    assert main(["run", "simulate", "mine", "--runs-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["step_s"] < 2.0 + 3.5
