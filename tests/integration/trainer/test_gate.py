"""The gap is looked at for the whole run: what is an alarm, what is none, what becomes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentrl.engine.local import stepper
from agentrl.errors import RunError
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.run import PlannedRun
from agentrl.run_dir import read_episodes
from agentrl.trainer import RatioBandConfig, TrainerConfig
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.algorithms.staleness import mask_late
from agentrl.trainer.first_update_check import GapGate
from agentrl.trainer.sampled_tokens import SampledTokens
from agentrl.trainer.shares import Share
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import GapAlarm
from agentrl.types import Batch
from tests.one_thread import one_thread
from tests.unit.trainer.batches import (
    batch_of,
    on_policy,
    plain_logprobs,
    random_segments,
    tiny_model,
    with_logprobs,
)

__all__ = ["one_thread"]
ENV = f"{Path(__file__).parents[2] / 'e2e' / 'digits_env.py'}:Digits"
BATCH = batch_of(random_segments((30, 25, 20)))
USED = BATCH.mask_N


def newer(batch: Batch, version: int) -> Batch:
    return replace(batch, versions_N=np.where(batch.mask_N, np.int32(version), np.int32(-1)))


def sampled(batch: Batch, policy_N: NDArray[np.float64]) -> SampledTokens:
    """All of its trained tokens."""
    share = Share(
        batch=batch,
        own_R=np.ones(batch.num_rows, dtype=np.bool_),
        rows_R=np.arange(batch.num_rows),
        segments_R=np.zeros(batch.num_rows, dtype=np.int64),
        micros=[],
    )
    return SampledTokens.of(share, policy_N, batch.mask_N, has_rejected=True)


def judge(gate: GapGate, version: int, gaps: float | NDArray[np.float64]) -> GapAlarm | None:
    """Trains too if there is no alarm."""
    batch = newer(BATCH, version)
    policy_N = batch.logprobs_N.astype(np.float64) + gaps * USED
    alarm = gate.judge(sampled(batch, policy_N), version, batch.episode_ids)
    if alarm is None:
        gate.trained(version)
    return alarm


@given(
    scale=st.floats(1e-7, 2e-2),
    steps=st.integers(2, 30),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20)
def test_noise_of_any_precision_is_no_alarm_and_a_jump_is_one(
    scale: float, steps: int, seed: int
) -> None:
    """The noise of bfloat16 is that of the widest scale."""
    rng = np.random.default_rng(seed)
    gate = GapGate(RatioBandConfig(), 3)
    for version in range(steps):
        assert judge(gate, version, rng.normal(0, scale, len(USED))) is None
    jumped = rng.normal(0, 1, len(USED))
    alarm = judge(gate, steps, jumped)
    assert alarm is not None
    assert (alarm.number, alarm.final) == (1, False)
    worst = alarm.worst[0]
    at = int(np.abs(jumped * USED).argmax())
    assert BATCH.episode_R[np.searchsorted(BATCH.offsets_R1, at, side="right") - 1] == worst.episode
    assert worst.policy - worst.behavior == pytest.approx(jumped[at], abs=1e-5)
    # A jump never becomes what the run is used to.
    assert [judge(gate, steps, jumped) is not None for _ in range(2)] == [True, True]


def test_a_drift_of_a_few_percent_a_step_is_an_alarm_in_the_end() -> None:
    gate = GapGate(RatioBandConfig(), 99)
    gaps = [1e-4 * 1.03**i for i in range(400)]
    alarms = [gap for i, gap in enumerate(gaps) if judge(gate, i, gap) is not None]
    assert alarms
    assert RatioBandConfig().mean < alarms[0] < 0.5


def test_a_slow_drift_out_of_the_band_is_an_alarm() -> None:
    gate = GapGate(RatioBandConfig(), 3)
    drift = [1e-6] * 10 + [2e-2, 3e-2, 4e-2, 6e-2]
    assert [judge(gate, i, gap) is not None for i, gap in enumerate(drift)] == [False] * 13 + [True]


def test_one_token_is_enough() -> None:
    gate = GapGate(RatioBandConfig(), 1)
    assert judge(gate, 0, 1e-6) is None
    one = np.zeros(len(USED))
    one[np.flatnonzero(USED)[7]] = 0.8
    alarm = judge(gate, 1, one)
    assert alarm is not None
    assert alarm.final


def test_what_is_not_on_policy_is_not_judged() -> None:
    """A batch that is trained on twice has other ratios the second time."""
    gate = GapGate(RatioBandConfig(), 1)
    assert judge(gate, 4, 1e-6) is None
    assert judge(gate, 4, 2.0) is None
    assert judge(gate, 3, 2.0) is None
    assert judge(gate, 5, 2.0) is not None


def test_a_batch_of_older_tokens_alone_neither_opens_the_gate_nor_alarms() -> None:
    gate = GapGate(RatioBandConfig(), 1)
    old = newer(BATCH, 4)
    assert gate.judge(sampled(old, old.logprobs_N + 3.0 * USED), 6, old.episode_ids) is None
    assert not gate.is_open
    gate.trained(6)
    with pytest.raises(RunError, match="before the first update"):
        judge(gate, 7, 3.0)


def test_only_the_newest_version_is_judged_also_after_a_resume() -> None:
    """Tokens that older weights sampled may be far off; those of the newest may not."""
    gate = GapGate(RatioBandConfig(), 1)
    late = np.flatnonzero(USED)[::2]
    mixed = newer(BATCH, 5)
    mixed.versions_N[late] = 2
    gaps = np.zeros(len(USED))
    gaps[late] = 3.0
    assert gate.judge(sampled(mixed, mixed.logprobs_N + gaps), 5, mixed.episode_ids) is None
    assert gate.is_open
    gate.trained(5)
    tokens = sampled(mixed, mixed.logprobs_N + 3.0 - gaps)
    with pytest.raises(RunError, match="before the first update"):
        GapGate(RatioBandConfig(), 1).judge(tokens, 5, mixed.episode_ids)
    resumed = GapGate(RatioBandConfig(), 1)
    resumed.restore(gate.state())
    assert judge(resumed, 5, 3.0) is None
    assert not resumed.is_open
    with pytest.raises(RunError, match="before the first update"):
        judge(resumed, 6, 3.0)


def test_what_a_correction_rejected_is_judged_too() -> None:
    """A wrong temperature is not hidden by rejecting all that it makes unlikely."""
    model = tiny_model()
    config = TrainerConfig(correct="icepop(low=0.7, high=1.4)", estimator="reinforce")
    recipe = make_recipe(config)
    honest = on_policy(model, random_segments((30, 25, 20)), advantages=(1, -1, 1))
    trainer = LocalTrainer(model, config, total_steps=2)
    cold = recipe.prepare(replace(honest, temperature=0.5), trainer)
    assert 0 < cold.num_trained < honest.num_trained
    with pytest.raises(RunError, match=f"ratios of {honest.num_trained} tokens have mean"):
        trainer.update(cold)
    trainer = LocalTrainer(tiny_model(), config, total_steps=2)
    prepared = recipe.prepare(honest, trainer)
    prepared = replace(prepared, mask_N=np.zeros_like(prepared.mask_N), rejected_N=honest.mask_N)
    prepared = replace(prepared, weights_N=np.zeros_like(prepared.logprobs_N))
    stats = trainer.update(prepared)
    assert stats.skipped == "trainer.correct rejected every token of the batch"
    assert stats.verified_share == 1
    assert stats.gap_max == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("correct", ["none", "tis", "icepop"])
def test_what_is_masked_as_too_old_adds_nothing_to_the_gap(correct: str, seed: int) -> None:
    """Rows of versions 5, 9 and 9, all with the trainer's own logprobs: the true gap is 0."""
    model, versions = tiny_model(), (5, 9, 9)
    segments = random_segments((30, 25, 20), seed)
    batch = batch_of(segments)
    with torch.no_grad():
        logprobs_N = plain_logprobs(model, batch).numpy()
    rows = [with_logprobs(s, logprobs_N[batch.row(r)], versions[r]) for r, s in enumerate(segments)]
    batch = replace(batch_of(rows), version=9, weights_N=None, rewards_E=np.array([1.0, 0.0, 2.0]))
    late = mask_late(batch, 8)
    assert 0 < late.num_trained < batch.num_trained
    config = TrainerConfig(correct=correct, estimator="reinforce")
    recipe, trainer = make_recipe(config), LocalTrainer(model, config, total_steps=2)
    stats = trainer.update(recipe.prepare(late, trainer))
    assert stats.skipped is None
    assert stats.num_trained == late.num_trained
    assert stats.gap_max == pytest.approx(0, abs=1e-4)
    assert stats.ratio_deviation_max == pytest.approx(0, abs=1e-4)
    assert trainer.gate.is_open


def test_a_batch_that_is_too_old_as_a_whole_says_so() -> None:
    config = TrainerConfig(estimator="reinforce")
    trainer = LocalTrainer(tiny_model(), config, total_steps=2)
    old = on_policy(tiny_model(), random_segments((9, 12)), version=5)
    old = replace(old, version=9, weights_N=None)
    stats = trainer.update(make_recipe(config).prepare(mask_late(old, 8), trainer))
    assert stats.skipped == "async.late masked every token of the batch"
    assert not trainer.gate.is_open


def test_a_batch_with_an_alarm_changes_nothing_and_a_checkpoint_keeps_the_count(
    tmp_path: Path,
) -> None:
    def again(trainer: LocalTrainer, version: int) -> Batch:
        model = tiny_model()
        model.load_state_dict(trainer.model.state_dict())
        segments = random_segments((9, 12))
        return on_policy(model, segments, version=version, advantages=(1, -1))

    config = TrainerConfig(lr=1e-3, max_gap_alarms=2)
    trainer = LocalTrainer(tiny_model(), config, total_steps=9)
    assert trainer.update(again(trainer, 0)).alarm is None
    batch = again(trainer, 1)
    before = {n: p.clone() for n, p in trainer.model.named_parameters()}
    stats = trainer.update(replace(batch, temperature=0.3))
    assert stats.alarm is not None
    assert stats.skipped == stats.alarm.reason
    assert not stats.alarm.final
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.named_parameters())
    assert all(p.grad is None for p in trainer.model.parameters())
    path = trainer.save(tmp_path, step=1, state={})
    resumed = LocalTrainer(tiny_model(), config, total_steps=9)
    resumed.load(path)
    assert resumed.update(again(resumed, 1)).alarm is None
    alarm = resumed.update(replace(again(resumed, 2), temperature=0.3)).alarm
    assert alarm is not None
    assert (alarm.number, alarm.final) == (2, True)


class Remembering(Observer):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run(
    tmp_path: Path, *flags: str, observer: Observer | None = None, resume: bool = False
) -> PlannedRun:
    small = ("--rollout.tasks-per-step", "2", "--group-size", "2", "--checkpoint.every", "2")
    given = (*small, "--rollout.max-new-tokens", "6", "--threads", "1", "--steps", "6", *flags)
    loaded = load_run_config(
        flags=["--env", ENV, "--runs-dir", str(tmp_path), "--name", "a", *given]
    )
    return PlannedRun(loaded, observers=[observer] if observer else [], resume=resume)


def heat(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """The engine says logprobs of another temperature than the trainer is told."""
    draw = vars(stepper)["draw_ids"]  # heated before, perhaps

    def hot(logits: Any, temperatures: Any, uniforms: Any) -> Any:
        return draw(logits, temperatures * np.float32(factor), uniforms)

    monkeypatch.setattr(stepper, "draw_ids", hot)


def events(tmp_path: Path) -> Sequence[Mapping[str, Any]]:
    lines = (tmp_path / "a" / "events.jsonl").read_bytes().splitlines()
    return [event for line in lines if (event := orjson.loads(line))["event"] == "gap_alarm"]


def test_a_run_whose_engine_goes_wrong_names_the_episodes_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is resumed between two alarms."""
    display = Remembering()
    with run(tmp_path, observer=display) as going:
        for step in going:
            if step.step == 2:
                heat(monkeypatch, 0.2)
            if step.step == 4:
                break
    heat(monkeypatch, 5)  # the two cancel
    with run(tmp_path, resume=True) as going:
        steps = iter(going)
        assert next(steps).stats.alarm is None
        heat(monkeypatch, 0.2)
        with pytest.raises(RunError, match="alarm 3 of this run"):
            next(steps)
    found = events(tmp_path)
    assert [event["step"] for event in found] == [3, 4, 6]
    (shown,) = [w for w in display.warnings if "step 3 is not trained on: the gap" in w]
    assert all(line in shown for line in found[0]["worst"])
    for event in found:
        file = tmp_path / "a" / "episodes" / f"step-{event['step']:06}.parquet"
        episodes = read_episodes(file)
        for line in event["worst"]:
            row = int(line.partition("; row ")[2].partition(" of ")[0])
            said = f"(env digits_env.py:Digits, task {episodes[row].task.id}, "
            assert line.startswith(f"{episodes[row].id} {said}")
            assert str(file) in line


def test_a_bfloat16_engine_gives_no_alarm(tmp_path: Path) -> None:
    with run(tmp_path, "--engine.dtype", "bfloat16", "--lr", "1e-3") as going:
        assert [step.stats.alarm for step in going] == [None] * 6
