"""Episodes that actors of a Ray cluster play: on all nodes, and what becomes of one that ends."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.orchestration.ray_workers import RayPlayers
from agentrl.rollout import Codec
from agentrl.rollout.player import pickle_envs
from agentrl.rollout.player_pool import PlayerPool
from agentrl.testing.local_ray import LocalRay
from agentrl.tokens import Tokenizer
from agentrl.types import Invalid
from tests.integration.rollout.talk import Dice, Talk, collect, maker, troubled

DEADLINE_S = 2.0


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("die", "its process "), ("stand", "stood still for 2 s and was killed")],
)
async def test_one_that_ends_costs_attempts_alone_and_all_nodes_play(
    two_raylets: LocalRay,
    tiny_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
    said: str,
) -> None:
    codec = Codec(Tokenizer.load(tiny_folder))
    here, _ = await collect(codec, Dice(codec))
    workers = RayPlayers("players", two_raylets.address, DEADLINE_S).start(None)
    envs = pickle_envs([maker(Talk)])
    pool = PlayerPool(workers, codec=codec, envs=envs, deadline_s=DEADLINE_S)
    try:
        await pool.start()
        assert len({node for _, node, _ in workers.places}) == 2
        before = {pid for pid, _, _ in workers.places}
        played = troubled(trouble, tmp_path / "mark")
        there, invalid = await collect(codec, Dice(codec), pool.make_runner, played)
    finally:
        await pool.aclose()
    assert [e.id.rpartition("-")[0] for e in there] == [e.id.rpartition("-")[0] for e in here]
    (line,) = [text for text in caplog.messages if "episodes were there" in text]
    assert said in line
    assert f"{len(invalid)} episodes were there" in line
    assert {said in e.outcome.reason for e in invalid if isinstance(e.outcome, Invalid)} == {True}
    assert len({pid for pid, _, _ in workers.places} - before) == 1  # another took its place


def test_an_environment_that_a_node_cannot_import_is_named(
    two_raylets: LocalRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "here_alone.py"
    module.write_text("from agentrl.envs import ToolEnv\n\n\nclass Here(ToolEnv):\n    pass\n")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        envs = pickle_envs([maker(import_module("here_alone").Here)])
    module.unlink()
    with pytest.raises(
        ConfigError, match=r"^env env cannot be played on .* \(ModuleNotFoundError: .*here_alone"
    ):
        RayPlayers("players", two_raylets.address, DEADLINE_S).check(envs, None)
