"""score_with: every way in which a verifier can fail is Invalid, and only values decide."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from agentrl.types import EpisodeView, Invalid, Message, Outcome, Score, Task
from agentrl.verifiers import (
    ExactMatch,
    ExactNumber,
    FormatOk,
    LengthPenalty,
    Rubric,
    Verifier,
    score_with,
)
from agentrl.workers import WorkerPool

TASK = Task(prompt="What is 6 * 7?", answer=42)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(2, "verifiers")
    yield pool
    pool.close()


def view(answer: object = "42", *messages: Message) -> EpisodeView:
    return EpisodeView(task=TASK, messages=messages, answer=answer, call_errors=())


def returning(value: Any) -> Callable[[Task, Any], Any]:
    return lambda task, answer: value


async def outcome(verifier: Verifier, pool: WorkerPool, answer: object = "42") -> Outcome:
    return await score_with(verifier, view(answer), pool=pool, timeout_s=20)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1.0),
        (False, 0.0),
        (0.25, 0.25),
        (1, 1.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (Score(value=0.5, parts={"a": 3.0}), 0.5),
    ],
)
async def test_values_that_are_scores(value: object, expected: float, pool: WorkerPool) -> None:
    found = await outcome(returning(value), pool)
    assert isinstance(found, Score)
    assert found.value == expected
    assert type(found.value) is float
    assert found.parts == (value.parts if isinstance(value, Score) else {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "returned None"),
        (math.nan, "returned nan, outside its range"),
        (math.inf, "returned inf"),
        (1.5, r"returned 1\.5, outside its range \[0, 1\]"),
        (-0.1, r"returned -0\.1"),
        (10**400, "returned inf"),
        (Score(value=2.0), "returned 2, outside"),
        ("1.0", "returned a str"),
        ([], "returned a list"),
        ((1, 2), "returned a tuple"),
        (1j, "returned a complex"),
    ],
)
async def test_values_that_are_none(value: object, reason: str, pool: WorkerPool) -> None:
    found = await outcome(returning(value), pool)
    assert isinstance(found, Invalid)
    assert found.blame == "verifier"
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found.reason)


class Signed:
    score_range = (-1.0, 1.0)

    def score(self, task: Task, answer: str) -> float:
        return float(answer)


@pytest.mark.parametrize(("answer", "valid"), [("-1", True), ("1", True), ("-1.1", False)])
async def test_declared_range(answer: str, valid: bool, pool: WorkerPool) -> None:
    assert isinstance(await outcome(Signed(), pool, answer), Score if valid else Invalid)


async def test_a_scores_reason_is_kept(pool: WorkerPool) -> None:
    mine = Score(value=0.5, parts={"half": 1.0}, reason="only half of it")
    assert await outcome(returning(mine), pool) == mine


async def test_own_invalid_is_kept(pool: WorkerPool) -> None:
    mine = Invalid(reason="no reference", blame="environment", retryable=False)
    assert await outcome(returning(mine), pool) == mine


def crash(task: Task, answer: Any) -> float:
    raise KeyError("gold")


def hang(task: Task, answer: Any) -> float:
    return float(9**9**9**9)


def die(task: Task, answer: Any) -> float:
    os._exit(7)


def leave(task: Task, answer: Any) -> float:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        (
            crash,
            r"verifier crash raised KeyError: 'gold' \(.*test_scoring.py, line \d+, in crash\)",
        ),
        (hang, "verifier hang took too long: hang ran longer than 0.3 s"),
        (die, "exited with status 7"),
        (leave, "SystemExit: 0"),
    ],
)
async def test_failures_are_invalid(verifier: Verifier, reason: str, pool: WorkerPool) -> None:
    await pool.call(abs, 1, timeout_s=20)
    limit_s = 0.3 if verifier is hang else 20
    found = await score_with(verifier, view(), pool=pool, timeout_s=limit_s)
    assert isinstance(found, Invalid)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found.reason)


async def test_hanging_verifier_delays_no_other(pool: WorkerPool) -> None:
    hanging = asyncio.create_task(score_with(hang, view(), pool=pool, timeout_s=20))
    await asyncio.sleep(0)
    others = [score_with(returning(1.0), view(), pool=pool, timeout_s=20) for _ in range(20)]
    assert all(isinstance(found, Score) for found in await asyncio.gather(*others))
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_timeouts_leave_no_process(pool: WorkerPool) -> None:
    await asyncio.gather(*(pool.call(time.sleep, 0.05, timeout_s=20) for _ in range(2)))
    before = len(psutil.Process().children(recursive=True))
    late = [score_with(hang, view(), pool=pool, timeout_s=0.1) for _ in range(4)]
    assert all(isinstance(found, Invalid) for found in await asyncio.gather(*late))
    assert len(psutil.Process().children(recursive=True)) < before


async def slow(task: Task, answer: Any) -> float:
    await asyncio.sleep(60)
    return 1.0


async def own_timeout(task: Task, answer: Any) -> float:
    raise TimeoutError("the judge was busy")


class Judge:
    async def score(self, task: Task, answer: str) -> bool:
        await asyncio.sleep(0)
        return answer == "42"


async def test_async_verifiers_run_in_the_loop_with_a_deadline(pool: WorkerPool) -> None:
    assert await outcome(Judge(), pool) == Score(value=1.0)
    late = await score_with(slow, view(), pool=pool, timeout_s=0.05)
    assert isinstance(late, Invalid)
    assert "did not answer within 0.05 s" in late.reason
    busy = await outcome(own_timeout, pool)
    assert isinstance(busy, Invalid)
    assert "raised TimeoutError: the judge was busy" in busy.reason


async def test_cancelling_is_no_outcome(pool: WorkerPool) -> None:
    running = asyncio.create_task(score_with(slow, view(), pool=pool, timeout_s=60))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class CountsMessages:
    def score_episode(self, view: EpisodeView) -> float:
        return 1.0 if len(view.messages) == 2 else 0.0


async def test_score_episode_sees_the_messages(pool: WorkerPool) -> None:
    messages = (Message(role="user", content="a"), Message(role="assistant", content="b"))
    found = await score_with(CountsMessages(), view("x", *messages), pool=pool, timeout_s=20)
    assert found == Score(value=1.0)


async def test_gold_in_tool_text_earns_nothing(pool: WorkerPool) -> None:
    quoting = (
        Message(role="tool", content="42"),
        Message(role="assistant", content="The tool says 42", reasoning="42"),
    )
    found = await score_with(ExactNumber(), view("I do not know", *quoting), pool=pool)
    assert found == Score(value=0.0)


async def test_cheap_verifiers_start_no_process() -> None:
    pool = WorkerPool(1, "unused")
    pool.close()
    rubric = Rubric(correct=(ExactNumber(), 0.8), brief=(LengthPenalty(200), 0.2), gate=FormatOk())
    for verifier in (ExactNumber(), rubric):
        assert await score_with(verifier, view(), pool=pool) == Score(
            value=1.0, parts={} if verifier is not rubric else dict.fromkeys(rubric.verifiers, 1.0)
        )


async def test_bad_reference_is_invalid(pool: WorkerPool) -> None:
    broken = EpisodeView(task=Task(prompt="?", answer=None), messages=(), answer="42")
    for verifier in (ExactNumber(), ExactMatch()):
        assert isinstance(await score_with(verifier, broken, pool=pool), Invalid)
