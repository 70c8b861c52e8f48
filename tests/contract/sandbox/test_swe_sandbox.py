"""Episodes of `swe_sandbox`: what the agent finds, what it gets, and whose fault a failure is."""

import io
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from agentrl.cli.dispatch import main
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import MixtureAgent, NullAgent, default_services, resolve_env
from agentrl.envs.check import check_env_class
from agentrl.envs.services import EnvServices
from agentrl.envs.swe.commands import TestCommand
from agentrl.envs.swe.decoys import RUNS
from agentrl.envs.swe.grade import Grading
from agentrl.envs.swe.repair import BuiltRepair
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.envs.toolenv import ToolEnv
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    episode_metrics,
    gather_groups,
)
from agentrl.rollout.batch import make_batch
from agentrl.sandboxes import SandboxOptions, run_sync
from agentrl.tokens import Tokenizer
from agentrl.trainer import group_advantages
from agentrl.types import Invalid, Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.swe_cheats import CHEATS

pytestmark = [pytest.mark.sandbox]
_NUM_MEMBERS: Final = 6


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        shop.use_own_pytest(patch)
        yield shop.tasks_file(tmp_path_factory.mktemp("shop"))


@pytest.fixture
async def env(file: Path, options: SandboxOptions) -> AsyncIterator[ToolEnv]:
    made = resolve_env("swe_sandbox")(SweSandbox.Config(tasks=str(file), sandbox=options))
    await made.areset(seed=0)
    yield made
    await made.aclose()
    await made.services.sandboxes.close()


async def test_the_repair_is_worth_one(env: ToolEnv) -> None:
    expert = SweSandbox.expert()
    score = await shop.play(env, expert)
    assert score == Score(
        value=1.0,
        parts={"fail_to_pass": 1.0, "pass_to_pass": 1.0, "cheats_caught": 0.0, "unguarded": 0.0},
        reason="every expected test passed",
    )
    assert "Edited src/shop/prices.py" in env.conversation[-3].content


async def test_the_agent_finds_neither_tests_nor_history(env: ToolEnv) -> None:
    script = (
        "git log --all --oneline; git remote; ls tests; python3 -c 'import shop, pytest'; "
        "touch /mnt/tools/x; pwd; git fetch origin"
    )
    score = await shop.play(env, shop.BashAgent(script))
    said = env.conversation[-3].content
    assert said.count("The repository as it was found") == 1
    assert "test_" not in said
    assert "Read-only file system" in said
    assert isinstance(score, Score)
    assert (score.value, score.reason) == (0, "nothing was changed")


async def test_what_lies_in_the_work_tree_counts_whatever_was_committed_or_said(
    env: ToolEnv,
) -> None:
    mess = "git add -A; git commit -qm x; rm -rf .git; mkfifo src/shop/pipe; mkdir -m 0 closed"
    script = shop.put("src/shop/prices.py", shop.PRICES) + mess
    score = await shop.play(env, shop.BashAgent(script))
    assert isinstance(score, Score)
    assert score.value == 1, score.reason


@pytest.mark.bwrap
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("head -c 3000000 /dev/urandom >big", "the patch has"),
        (shop.source("def broken(:"), "fail"),
        ("ln -s /etc/passwd src/shop/link", "left out of the patch: src/shop/link"),
    ],
    ids=["large", "broken", "link"],
)
async def test_what_the_policy_does_is_scored_with_a_reason(
    file: Path, script: str, said: str
) -> None:
    env = SweSandbox(SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap")))
    await env.areset(seed=0)
    score = await shop.play(env, shop.BashAgent(script))
    await env.aclose()
    assert isinstance(score, Score)
    assert score.value == 0
    assert said in score.reason
    await env.services.sandboxes.close()


@pytest.mark.bwrap
async def test_a_repair_that_sleeps_is_scored_in_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grading_of(repair: BuiltRepair, root: str, tools: str) -> Grading:
        return replace(grading(repair, root, tools), all_s=2.5)

    grading = BuiltRepair.grading
    monkeypatch.setattr(BuiltRepair, "grading", grading_of)
    monkeypatch.setattr(SweSandbox, "hook_timeout_s", 30.0)
    env = SweSandbox(SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap")))
    await env.areset(seed=0)
    sleeps = shop.put("src/shop/prices.py", f"import time\ntime.sleep(2)\n{shop.PRICES}")
    score = await shop.play(env, shop.BashAgent(sleeps))
    await env.aclose()
    await env.services.sandboxes.close()
    assert isinstance(score, Score)
    assert score.value == 0
    assert "timeout" in score.reason or "took 2.5 s together" in score.reason


def test_no_grading_outlasts_its_hook() -> None:
    # Each run may also need the time to put the repository, the tests and the patch in place.
    command = TestCommand(argv=())
    grading = Grading(root="", fail_to_pass=(), pass_to_pass=(), command=command, arguments=())
    assert SweSandbox.hook_timeout_s >= grading.all_s + RUNS * 90


@pytest.mark.bwrap
async def test_a_patch_is_judged_by_as_many_processes_whatever_its_number_of_files(
    file: Path,
) -> None:
    env = SweSandbox(SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap")))
    repair, counts = shop.put("src/shop/prices.py", shop.PRICES), list[int]()
    for more in ("", "for i in $(seq 150); do echo x = 1 >src/shop/m$i.py; done"):
        await env.areset(seed=0)
        before = env.sandbox.num_execs
        score = await shop.play(env, shop.BashAgent(repair + more))
        assert isinstance(score, Score)
        assert score.value == 1, score.reason
        counts.append(env.sandbox.num_execs - before)
    await env.aclose()
    await env.services.sandboxes.close()
    assert counts[0] == counts[1]


@pytest.mark.bwrap
async def test_a_sandbox_that_died_makes_an_episode_invalid(file: Path) -> None:
    env = SweSandbox(SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap")))
    await env.areset(seed=0)
    await env.advance(shop.call("submit"))
    await env.sandbox.close()
    outcome = await env.ascore()
    await env.aclose()
    await env.services.sandboxes.close()
    assert isinstance(outcome, Invalid)
    assert outcome.blame == "sandbox"


@pytest.mark.bwrap
async def test_a_mixture_earns_what_its_honest_part_earns(file: Path, tiny_folder: Path) -> None:
    """Half oracles, a quarter each that does nothing and that cheats, through the real loop."""
    expert = SweSandbox.expert()
    cheat = shop.BashAgent(CHEATS["exits in conftest"].script)
    mixture = MixtureAgent(
        {"oracle": (expert, 2), "null": (NullAgent(), 1), "cheat": (cheat, 1)}, seed=1
    )
    codec = Codec(Tokenizer.load(tiny_folder))
    engine = ScriptedEngine(mixture, codec.renderer(SweSandbox().tool_schemas))
    limits = EpisodeLimits(
        max_new_tokens=1 << 20, max_context_tokens=1 << 20, wall_s=None, setup_s=60
    )
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=4, attempts=1, max_invalid_share=0.0
    )
    services = EnvServices()
    config = SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap"))
    task = SweSandbox.task_at(0, split="train", seed=0, config=config)
    jobs = [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=group),
            env="swe_sandbox",
            make_env=lambda: SweSandbox(config, services=services),
            task=task,
            split="train",
        )
        for group in range(2)
    ]
    collector = Collector(engine=engine, codec=codec, settings=settings)
    collected = await gather_groups(collector.collect(jobs, group_size=_NUM_MEMBERS))
    await services.sandboxes.close()
    episodes = collected.episodes
    honest = np.array([e.messages[2].content == "oracle" for e in episodes])
    assert 0 < honest.sum() < len(episodes) == 2 * _NUM_MEMBERS
    assert [e.reward for e in episodes] == list(honest.astype(float))
    metrics = episode_metrics(collected)
    assert metrics["reward"] == pytest.approx(honest.mean())
    assert metrics["invalid"] == 0
    batch = make_batch(episodes, temperature=1.0)
    advantages = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=False)
    by_group = honest.reshape(2, _NUM_MEMBERS).astype(float)
    assert advantages == pytest.approx((by_group - by_group.mean(1, keepdims=True)).reshape(-1))


@pytest.mark.bwrap
def test_the_environment_is_fit_for_training(file: Path) -> None:
    config = SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap"))
    report = check_env_class(SweSandbox, config=config, num_tasks=1)
    # Tasks of one package are all of one split; else it is fit.
    (missing,) = (row for row in report.rows if not row.ok)
    assert missing.name == "splits", report.lines()
    assert missing.detail.startswith("there are no tasks for the split heldout, only for train")
    rows = {row.name: row.detail for row in report.rows}
    assert "mean return 1," in rows["expert"]
    assert "mean return 0," in rows["null agent"]
    assert "mean return 0," in rows["scripted agent"]
    run_sync(default_services().sandboxes.close())


@pytest.mark.bwrap
@pytest.mark.timeout(240)
def test_it_is_trained_on_from_the_command_line(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--env", "swe_sandbox", "--env.tasks", str(file), "--sandbox", "bwrap"]
    small = ["--tasks-per-step", "1", "--group-size", "2", "--rollout.max_new_tokens", "400"]
    warm = ["--warm-start.updates", "1", "--warm-start.batch", "1", "--runs-dir", str(tmp_path)]
    assert main(["train", *argv, *small, *warm, "--steps", "1"]) == 0
    assert "verified 100%" in capsys.readouterr().out
    for agent, reward in (("oracle", "1.000"), ("null", "0.000")):
        played = ["--agent", agent, "--eval.split", "train", "--eval.tasks", "1"]
        assert main(["eval", *argv, *played]) == 0
        assert f"reward    {reward}" in capsys.readouterr().out


@pytest.mark.bwrap
def test_it_is_played_by_hand(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = '{"command": "view", "path": "src/shop/prices.py", "view_range": [8, 8]}'
    lines = [f"str_replace_editor {view}", "bash pwd", "nothing", "bash {", "submit"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    argv = ["env", "play", "swe_sandbox", "--env.tasks", str(file), "--sandbox", "bwrap"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "A discount makes it dearer" in said
    assert "     8\t    result = sum(prices) * (100 + discount) // 100" in said
    assert "/workspace" in said
    assert "that is no JSON" in said
    assert said.endswith("score 0: nothing was changed\n")
