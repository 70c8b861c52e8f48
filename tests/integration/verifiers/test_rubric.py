"""Rubric: weights, gate, names, nesting, pickling."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.types import EpisodeView, Invalid, Outcome, Score, Task
from agentrl.verifiers import ExactMatch, ExactNumber, FormatOk, LengthPenalty, Rubric, score_with
from agentrl.workers import WorkerPool


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2, "rubric")
    yield pool
    pool.close()


def standard() -> Rubric:
    return Rubric(correct=(ExactNumber(), 0.8), brief=(LengthPenalty(4), 0.2), gate=FormatOk())


async def run(rubric: Rubric, pool: WorkerPool, answer: str, *errors: str) -> Outcome:
    view = EpisodeView(
        task=Task(prompt="?", answer=42), messages=(), answer=answer, call_errors=errors
    )
    return await score_with(rubric, view, pool=pool, timeout_s=20)


@pytest.mark.parametrize(
    ("answer", "errors", "value", "parts"),
    [
        ("42", (), 1.0, {"correct": 1.0, "brief": 1.0, "gate": 1.0}),
        ("42.000", (), 0.9, {"correct": 1.0, "brief": 0.5, "gate": 1.0}),
        ("43", (), 0.2, {"correct": 0.0, "brief": 1.0, "gate": 1.0}),
        ("42", ("malformed",), 0.0, {"correct": 1.0, "brief": 1.0, "gate": 0.0}),
    ],
)
async def test_weighted_sum_behind_a_gate(
    answer: str, errors: tuple[str, ...], value: float, parts: dict[str, float], pool: WorkerPool
) -> None:
    found = await run(standard(), pool, answer, *errors)
    assert isinstance(found, Score)
    assert found.value == pytest.approx(value)
    assert found.parts == parts


async def test_one_invalid_part_makes_all_invalid(pool: WorkerPool) -> None:
    def broken(task: Task, answer: Any) -> float:
        raise OSError("disk")

    for rubric, start in (
        (Rubric(correct=(ExactNumber(), 1.0), style=(broken, 1e-9)), "style: verifier"),
        (Rubric(correct=(ExactNumber(), 1.0), gate=broken), "gate: verifier"),
        (Rubric(inner=(Rubric(style=(broken, 1.0)), 1.0)), "inner: style: verifier"),
    ):
        found = await run(rubric, pool, "42")
        assert isinstance(found, Invalid)
        assert found.blame == "verifier"
        assert found.reason.startswith(start)
        assert "OSError: disk" in found.reason


async def test_parts_in_processes_and_nested_names(pool: WorkerPool) -> None:
    def half(task: Task, answer: Any) -> Score:
        return Score(value=0.5, parts={"tone": 0.25})

    inner = Rubric(number=(ExactNumber(), 0.5), style=(half, 0.5))
    found = await run(Rubric(all=(inner, 1.0)), pool, "42")
    assert found == Score(
        value=0.75,
        parts={"all": 0.75, "all/number": 1.0, "all/style": 0.5, "all/style/tone": 0.25},
    )


class Penalty:
    score_range = (-1.0, 0.0)

    def score(self, task: Task, answer: str) -> float:
        return -1.0


async def test_range_follows_from_parts_and_weights(pool: WorkerPool) -> None:
    rubric = Rubric(correct=(ExactNumber(), 2.0), fine=(Penalty(), 0.5))
    assert rubric.score_range == (-0.5, 2.0)
    assert Rubric(fine=(Penalty(), 1.0), gate=FormatOk()).score_range == (-1.0, 0.0)
    found = await run(rubric, pool, "42")
    assert isinstance(found, Score)
    assert found.value == 1.5


async def test_rubric_travels() -> None:
    pool = WorkerPool(1, "unused")
    pool.close()
    copy = pickle.loads(pickle.dumps(standard()))
    assert await run(copy, pool, "42") == await run(standard(), pool, "42")


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_are_not_negative(weight: float) -> None:
    with pytest.raises(ConfigError, match="part correct has weight"):
        Rubric(correct=(ExactNumber(), weight))


async def test_a_weight_of_0_is_for_a_part_that_is_measured_only(pool: WorkerPool) -> None:
    rubric = Rubric(correct=(ExactNumber(), 1.0), brief=(LengthPenalty(4), 0.0))
    assert rubric.score_range == (0.0, 1.0)
    found = await run(rubric, pool, "42.000")
    assert isinstance(found, Score)
    assert (found.value, found.parts) == (1.0, {"correct": 1.0, "brief": 0.5})
    with pytest.raises(ConfigError, match="a part with a weight above 0"):
        Rubric(harm=(LengthPenalty(1), 0.0))


@pytest.mark.parametrize("part", [ExactMatch(), (ExactMatch(),), (ExactMatch(), "1"), 0.5])
def test_parts_are_pairs(part: Any) -> None:
    with pytest.raises(ConfigError, match=r"part correct is .*, expected \(verifier, weight\)"):
        Rubric(correct=part)


def test_no_parts() -> None:
    with pytest.raises(ConfigError, match="at least one part"):
        Rubric(gate=FormatOk())
