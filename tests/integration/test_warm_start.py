import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.parts import build_parts
from agentrl.orchestration.preflight import make_plan
from agentrl.orchestration.warm_start import Demonstrations, supervised_plan

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


def batches_of_one(num: int, flags: Sequence[str], folder: Path) -> list[bytes]:
    flags = ["--env", "calculator", "--runs-dir", str(folder), "--warm-start.batch", "1", *flags]
    plan = make_plan(load_run_config(flags=flags).config)

    async def play() -> list[bytes]:
        folder = resolve_model("tiny", seed=0)
        async with aclosing(await build_parts(supervised_plan(plan), folder)) as parts:
            demonstrations = Demonstrations(parts)
            batches = [await demonstrations.batch(update) for update in range(1, num + 1)]
            return [batch.ids_N.tobytes() for batch in batches]

    return asyncio.run(play())


def test_each_pass_has_all_demonstrations_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    new = batches_of_one(101, ["--warm-start.passes", "1"], tmp_path)
    twice = batches_of_one(201, ["--warm-start.passes", "2"], tmp_path)
    first, second = twice[:100], twice[100:200]
    assert sorted(first) == sorted(second) == sorted(new[:100])
    assert first != second
    assert new[:100] not in (first, second)
    assert twice[200] not in first
    assert twice == batches_of_one(201, ["--warm-start.passes", "2"], tmp_path)
