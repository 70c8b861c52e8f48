"""The order of a step: what waits for what, which version is served, and what a failure leaves."""

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.controller import Controller, StepResult
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.parts import Parts
from agentrl.orchestration.schedules import make_admission
from agentrl.orchestration.stopping import GivenUp, Stopping
from agentrl.rollout import Admission, EndedGroup, Judgement, TaskRef
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.updates import CRITIC_ALONE, StepStats
from agentrl.types import Batch
from tests.unit.orchestration.stand_ins import (
    STATS,
    Log,
    LoggedStore,
    LoggedTrainer,
    alarm,
    configuration,
    make_parts,
)

REFS = [TaskRef(env=0, index=0), TaskRef(env=0, index=1)]


class Bench:
    """A controller with the parts that it works with."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder = folder
        self.log = Log()
        self.trainer = LoggedTrainer(self.log)
        self.store = LoggedStore(
            self.log, SimpleNamespace(turns=out / "turns.jsonl", events=out / "events.jsonl")
        )
        self.stopping = Stopping()
        self.parts: Parts | None = None

    async def controller(
        self,
        *flags: str,
        estimator: Any = None,
        admission: Any = None,
        observer: Observer | None = None,
        more: Iterable[TaskRef] = (),
    ) -> Controller:
        """It draws the tasks of `REFS` for each step, or further ones behind them."""
        config = configuration(*flags)
        self.parts, trainer = (
            make_parts(self.folder, self.log, self.trainer, config),
            config.trainer,
        )
        objects = Overrides(given={config.rollout.admission: admission})
        controller = Controller(
            parts=self.parts,
            store=cast("Any", self.store),
            observer=observer or Observer(),
            stopping=self.stopping,
            recipe=make_recipe(trainer, {trainer.estimator: estimator}.get),
            admission=make_admission(config, objects),
        )
        refs = chain(REFS, more) if more else cycle(REFS)
        await controller.begin(lambda: next(refs))
        return controller


@pytest.fixture
def bench(tiny_folder: Path, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tiny_folder, tmp_path)
    yield bench
    if bench.parts is not None:
        bench.parts.services.close()


async def served(bench: Bench) -> int | None:
    assert bench.parts is not None
    return (await bench.parts.engine.health()).version


async def test_the_engine_stands_still_while_the_weights_change(bench: Bench) -> None:
    controller = await bench.controller()
    result = await controller.step()
    assert bench.log == ["pause", "update", "publish 1", "resume", "written 1"]
    assert isinstance(result, StepResult)
    assert bench.store.metrics[1]["reward"] == 1.0
    assert bench.trainer.batches[0].num_rows == 4
    await controller.step()
    assert controller.version == await served(bench) == 2


async def test_the_loop_goes_on_during_an_update(bench: Bench) -> None:
    loop, seen = asyncio.get_running_loop(), threading.Event()
    update = bench.trainer.update

    def slow(batch: Batch) -> StepStats:
        loop.call_soon_threadsafe(seen.set)
        assert seen.wait(10)
        return update(batch)

    bench.trainer.update = slow  # type: ignore[method-assign]
    await (await bench.controller()).step()
    assert bench.log == ["pause", "update", "publish 1", "resume", "written 1"]


async def test_what_changed_nothing_is_not_published(bench: Bench) -> None:
    bench.trainer.answers = [replace(STATS, skipped="all rewards are equal"), STATS]
    controller = await bench.controller()
    await controller.step()
    assert bench.log == ["pause", "update", "resume", "written 1"]
    assert controller.version == await served(bench) == 0
    assert [kind for kind, _ in bench.store.events] == ["nothing_trained"]
    await controller.step()
    assert controller.version == await served(bench) == 1


async def test_a_critic_that_learns_alone_is_no_trouble(bench: Bench) -> None:
    bench.trainer.answers = [replace(STATS, skipped=CRITIC_ALONE)]
    controller = await bench.controller()
    await controller.step()
    assert bench.log == ["pause", "update", "resume", "written 1"]
    assert bench.store.events == []


async def test_a_critic_that_was_left_as_it_is_is_told(bench: Bench) -> None:
    warned: list[str] = []

    class Listens(Observer):
        def warn(self, text: str) -> None:
            warned.append(text)

    bench.trainer.answers = [replace(STATS, value_skipped="the critic's loss is nan")]
    await (await bench.controller(observer=Listens())).step()
    assert warned == ["step 1: the critic's loss is nan: it was left as it is"]
    kept = {"step": 1, "reason": "the critic's loss is nan"}
    assert ("critic_skipped", kept) in bench.store.events


async def test_after_a_failed_update_the_engine_goes_on(bench: Bench) -> None:
    bench.trainer.answers = [RunError("the loss is not finite")]
    with pytest.raises(RunError, match="not finite"):
        await (await bench.controller()).step()
    assert bench.log == ["pause", "update", "resume"]
    assert not bench.store.metrics


async def test_on_one_device_one_of_both_has_the_memory(bench: Bench) -> None:
    controller = await bench.controller("--engine.share-device")
    await controller.step()
    assert bench.log == [
        *("pause", "engine gives up weights kv_cache cuda_graph", "trainer takes", "update"),
        *("trainer gives up", "engine takes weights", "publish 1"),
        *("engine takes kv_cache cuda_graph", "resume", "written 1"),
    ]


async def test_a_base_that_nobody_would_bring_again_stays(bench: Bench) -> None:
    bench.trainer.answers = [replace(STATS, skipped="all rewards are equal"), STATS]
    lora = ("--trainer.lora.rank", "4", "--trainer.lora.publish", "adapter")
    controller = await bench.controller("--engine.share-device", *lora)
    await controller.step()
    assert bench.log == [
        *("pause", "engine gives up kv_cache cuda_graph", "trainer takes", "update"),
        *("trainer gives up", "engine takes kv_cache cuda_graph", "resume", "written 1"),
    ]
    bench.log.clear()
    await controller.step()
    assert "publish 1" in bench.log
    assert "engine takes weights" not in bench.log


async def test_an_estimator_of_ones_own_says_what_is_trained(bench: Bench) -> None:
    def estimate(batch: Batch) -> NDArray[np.float32]:
        return np.where(batch.mask_N, 7.0, 0.0).astype(np.float32)

    await (await bench.controller(estimator=estimate)).step()
    batch = bench.trainer.batches[0]
    assert batch.advantages_N is not None
    assert set(batch.advantages_N[batch.mask_N]) == {7.0}


async def test_one_that_needs_a_critic_gets_values(bench: Bench) -> None:
    class Needy:
        needs = ("critic",)

        def __call__(self, batch: Batch) -> NDArray[np.float32]:
            assert batch.values_N is not None
            return batch.values_N

    with pytest.raises(ConfigError, match="needs a critic"):
        await bench.controller(estimator=Needy())
    await (await bench.controller("--trainer.algorithm", "ppo", estimator=Needy())).step()
    assert bench.log[:2] == ["pause", "values"]


async def test_passes_are_made_where_something_needs_them(bench: Bench) -> None:
    class Towards:
        needs = ("reference", "proximal")

        def __call__(self, batch: Batch) -> NDArray[np.float32]:
            assert batch.proximal_N is not None
            assert batch.reference_N is not None
            return batch.proximal_N - batch.reference_N

    await (await bench.controller("--trainer.kl.coef", "0.1", estimator=Towards())).step()
    assert bench.log[:4] == ["pause", "reference", "proximal", "update"]
    bench.log.clear()
    await (await bench.controller("--trainer.kl.coef", "0.1")).step()
    assert bench.log[:3] == ["pause", "reference", "update"]


async def test_a_correction_comes_before_the_advantages_and_is_told(bench: Bench) -> None:
    controller = await bench.controller(
        "--trainer.correct", "decoupled", "--estimator", "reinforce"
    )
    result = await controller.step()
    assert bench.log[:3] == ["pause", "proximal", "update"]
    batch = bench.trainer.batches[0]
    assert batch.factors_N is not None
    assert batch.weights_N is not None
    trained_N = batch.mask_N
    ratios = np.exp(-batch.logprobs_N[trained_N])  # to proximal logprobs of 0
    assert batch.weights_N[trained_N] * trained_N.sum() == pytest.approx(ratios, rel=1e-5)
    assert result.metrics["correct/rejected"] == 0
    assert result.metrics["correct/late0_ratio_p50"] == pytest.approx(np.median(ratios), rel=1e-5)
    bench.log.clear()
    result = await (await bench.controller()).step()
    assert bench.log[:2] == ["pause", "update"]
    assert not any(name.startswith("correct/") for name in result.metrics)


async def test_an_alarm_is_told_and_the_last_one_ends_the_run(bench: Bench) -> None:
    bench.trainer.answers = [alarm(final=False), alarm(final=True)]
    controller = await bench.controller()
    await controller.step()
    kind, fields = bench.store.events[0]
    assert (kind, fields["step"]) == ("gap_alarm", 1)
    assert "step-1.parquet" in str(fields["worst"])
    with pytest.raises(RunError, match="the gap is 3"):
        await controller.step()
    assert controller.version == 0
    assert list(bench.store.metrics) == [1, 2]  # the step that ended it can be read


async def test_evaluations_are_due_by_the_number_of_the_step(bench: Bench) -> None:
    controller = await bench.controller("--eval.every", "2")
    first, second = [await controller.step() for _ in (1, 2)]
    assert first.eval is None
    assert second.eval is not None
    assert bench.store.metrics[2]["eval/reward"] == 1.0
    assert bench.log.index("evaluated 2") == bench.log.index("written 2") - 1


async def test_each_group_of_a_run_has_a_number_of_its_own(bench: Bench) -> None:
    controller = await bench.controller("--eval.every", "1")
    for _ in range(3):
        await controller.step()
    ids = [e.id for collected in bench.store.collected for e in collected.episodes]
    groups = {e.group for collected in bench.store.collected for e in collected.episodes}
    assert len({*ids}) == len(ids) == 3 * (4 + 2)
    assert len(groups) == 3 * (2 + 2)


async def test_whoever_watches_is_told_of_each_group_that_ended(bench: Bench) -> None:
    class Watches(Observer):
        def phase(self, name: str) -> None:
            told.append(name)

        def groups(self, done: int, total: int) -> None:
            told.append((done, total))

    told: list[object] = []
    await (await bench.controller("--eval.every", "1", observer=Watches())).step()
    assert told == ["rollout", (1, 2), (2, 2), "train", "eval", (1, 2), (2, 2)]


async def test_a_stopped_run_begins_no_update_that_would_take_too_long(bench: Bench) -> None:
    controller = await bench.controller()
    bench.stopping.number = 15  # its deadline is long past
    with pytest.raises(GivenUp):
        await controller.step()
    assert not bench.log
    assert not bench.trainer.has_changed


class Picks:
    """Has something to learn from the groups at some places of a step alone."""

    needs = ("group of 2",)

    def __init__(self, *places: int) -> None:
        self.places = [f"-g{place}-" for place in places]

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        taught_E = np.array([any(p in e for p in self.places) for e in batch.episode_ids], np.bool_)
        taught_N = np.repeat(taught_E[batch.episode_R], np.diff(batch.offsets_R1))
        return (batch.mask_N & taught_N).astype(np.float32)


@pytest.mark.parametrize(
    ("taught", "drawn", "kept"),
    [
        ((0, 1), 2, [0, 1]),
        ((1, 3), 4, [1, 3]),
        ((0, 2, 3), 3, [0, 2]),
        ((4,), 6, [4]),  # the bound: trained on what there is
        ((), 6, []),
        ((6,), 6, []),
    ],
)
async def test_groups_that_teach_nothing_are_replaced_up_to_a_bound(
    bench: Bench, taught: Sequence[int], drawn: int, kept: list[int]
) -> None:
    further = (TaskRef(env=0, index=index) for index in range(2, 20))
    watched: list[tuple[int, int]] = []

    class Watches(Observer):
        def groups(self, done: int, total: int) -> None:
            watched.append((done, total))

    controller = await bench.controller(
        "--rollout.refill", "3.2", estimator=Picks(*taught), observer=Watches(), more=further
    )
    result = await controller.step()
    batch = bench.trainer.batches[0]
    assert batch.episode_ids == tuple(f"train-s1-g{g}-m{m}-a0" for g in kept for m in (0, 1))
    collected = bench.store.collected[0]
    assert [e.id for e in collected.episodes] == [*batch.episode_ids]
    assert {e.dropped for e in collected.episodes} <= {""}
    assert {e.dropped for e in collected.dropped} <= {"flat"}
    assert len({e.group for e in collected.scored}) == drawn == next(further).index
    assert watched[-1] == (drawn, drawn)
    metrics = result.metrics
    assert (metrics["groups/drawn"], metrics["groups/kept"]) == (drawn, len(kept))
    assert metrics["groups/solved"] == drawn - len(kept)
    assert metrics["dropped/flat"] == 2 * (drawn - len(kept))
    assert metrics["reward"] == 1.0  # of all that were played
    assert ("length/dropped" in metrics) is (drawn > len(kept))
    assert ("length/kept" in metrics) is bool(kept)
    assert (metrics["trained_tokens"] > 0) is bool(kept)


async def test_without_a_bound_flat_groups_stay(bench: Bench) -> None:
    result = await (await bench.controller(estimator=Picks())).step()
    assert bench.trainer.batches[0].num_rows == 4
    assert not any(key.startswith(("groups/", "dropped/", "length/")) for key in result.metrics)


async def test_a_long_turn_gets_less_in_the_batch_and_not_in_the_file(bench: Bench) -> None:
    controller = await bench.controller(
        "--rollout.overlong-buffer", "1", "--rollout.max-new-tokens", "64"
    )
    result = await controller.step()
    batch, episodes = bench.trainer.batches[0], bench.store.collected[0].episodes
    assert all(e.reward == 1.0 for e in episodes)
    lost = [1 - max(t.num_sampled for t in e.turns) / 64 for e in episodes]
    assert all(got <= most for got, most in zip(batch.rewards_E, lost, strict=True))
    assert batch.turn_rewards_U is not None
    assert batch.turn_rewards_U.sum() == pytest.approx(batch.rewards_E.sum())
    assert (result.metrics["overlong"], result.metrics["reward"]) == (1.0, 1.0)


async def test_a_group_alone_may_lack_what_an_estimator_needs_of_a_step(bench: Bench) -> None:
    """Keys, parts and greedy members that other groups have: without them it teaches nothing."""

    class Compares(Picks):
        def __call__(self, batch: Batch) -> NDArray[np.float32]:
            seen.append((batch.keys_U, {*batch.parts_E}, batch.greedy_E))
            return super().__call__(batch)

    seen: list[tuple[Any, set[str], Any]] = []
    controller = await bench.controller("--rollout.refill", "2", estimator=Compares(0, 1))
    seen.clear()
    await controller.step()
    alone = seen[:2]
    assert [(keys, {*parts}) for keys, parts, _ in alone] == [((None,) * 4, {"none"})] * 2
    assert all(np.isnan(greedy).tolist() == [True, True] for _, _, greedy in alone)


async def test_a_step_without_episodes_asks_no_estimator(bench: Bench) -> None:
    """One whose groups all taught nothing: an estimator could need what no batch without has."""

    class Refuses(Picks):
        def __call__(self, batch: Batch) -> NDArray[np.float32]:
            assert batch.num_rows
            return super().__call__(batch)

    controller = await bench.controller("--rollout.refill", "2", estimator=Refuses())
    await controller.step()
    batch = bench.trainer.batches[0]
    assert (batch.num_rows, batch.episode_ids) == (0, ())
    assert batch.advantages_N is not None
    assert batch.weights_N is not None


async def test_a_policy_of_one_s_own_says_what_is_trained_on(bench: Bench) -> None:
    class OnlyFirst(Admission):
        def judge(self, group: EndedGroup) -> Judgement:
            seen.append((group.env, group.step, len(group.episodes), group.teaches()))
            return Judgement("second", replace=True) if len(seen) == 2 else Judgement()

    seen: list[tuple[str, int, int, bool]] = []
    controller = await bench.controller(
        "--rollout.refill", "2", "--rollout.admission", "<OnlyFirst>", admission=OnlyFirst
    )
    metrics = (await controller.step()).metrics
    assert (len(seen), len(bench.store.collected[0].episodes)) == (3, 4)
    assert {(step, members) for _, step, members, _ in seen} == {(1, 2)}
    assert (metrics["dropped/second"], metrics["dropped/flat"]) == (2, 0)
    assert {"length/kept", "length/dropped", "groups/drawn"} <= metrics.keys()


async def test_a_resumed_run_plays_the_group_that_stood_for_a_ticket(bench: Bench) -> None:
    controller = await bench.controller("--rollout.refill", "3")
    kept = json.dumps({"next": 3, "open": [(1, 0, 1, 4)], "more": {"1": 3}})
    refs = cycle(REFS)
    await controller.begin(lambda: next(refs), 1, kept)
    await controller.step()
    played = {e.id[:-6]: e.task.id for e in bench.store.collected[0].scored}
    assert [*played] == ["train-s1-g4", "train-s2-g1"]
    assert controller.open_groups() == ""
