"""Off a terminal a warm start tells that it begins, how far it is, and what came of it."""

import re
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main

FEW = "--steps 1 --tasks-per-step 2 --group-size 2 --warm-start.batch 4 --warm-start.updates 5"


def test_a_piped_run_tells_its_warm_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    argv = ["train", "--env", "calculator", "--runs-dir", str(tmp_path / "runs"), *FEW.split()]
    assert main(argv) == 0
    said = capsys.readouterr().out.splitlines()
    told = said[said.index("warm start ...") :]
    for line, update in zip(told[1:6], range(1, 6), strict=True):
        assert re.fullmatch(rf"warm start: update {update} of 5, loss \d+\.\d+", line)
    assert told[6].startswith("warm start: 5 updates, loss")
    assert main(argv) == 0
    assert any("done before" in line for line in capsys.readouterr().out.splitlines())
