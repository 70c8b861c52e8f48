"""A rank that dies, stands still or runs out of memory: one sentence, no hang, nothing left."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

import os
import resource
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from agentrl.errors import ConfigError, RunError
from agentrl.testing.two_ranks import two_ranks
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.rank_group import PRELOAD
from agentrl.trainer.trainer import LocalTrainer
from agentrl.workers.dispatch import gathered
from agentrl.workers.executors import Processes
from tests.integration.ranks.cases import CONFIG, ragged
from tests.integration.ranks.conftest import held
from tests.unit.trainer.batches import tiny_model

DEADLINE_S = 3.0


@gathered
def pid(_: Ranks) -> int:
    return os.getpid()


@gathered
def rounds(ranks: Ranks, blow: str) -> None:
    """Exchanges for ever, until the last rank is struck."""
    trainer = LocalTrainer(tiny_model(), CONFIG, total_steps=4, ranks=ranks)
    trainer.update(ragged((9, 12, 7), 0))
    if ranks.rank == ranks.size - 1:
        if blow == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
            torch.ones(1 << 36)
        elif blow == "error":
            raise ValueError("of this rank alone")
        else:
            os.kill(os.getpid(), signal.Signals["SIGSTOP" if blow == "stop" else blow])
    while True:
        ranks.sum_(np.ones(3))


@pytest.mark.parametrize(
    ("blow", "sentence"),
    [
        ("SIGKILL", r"rank 1 of 2 ended during rounds \(the process was killed by SIGKILL"),
        ("SIGSTOP", r"rank 0 of 2 waited for the others during rounds for up to 3 s .*rank 1 did"),
        ("stop", r"rank 1 of 2 ended during rounds \(the process stood still for 1 s and was"),
        ("memory", r"rank 1 of 2, during rounds: .* out of memory .* lower trainer\.token_budget"),
        ("error", "of this rank alone"),
    ],
)
def test_one_sentence_and_nothing_left(
    blow: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    noticed_s = 1.0 if blow == "stop" else 60.0  # else the other rank is the first to notice
    executor = Processes(PRELOAD, noticed_s)
    ranks = two_ranks(held, executor=executor, timeout_s=DEADLINE_S)
    pids = ranks.ask(pid)
    started = time.monotonic()
    with pytest.raises((RunError, ValueError), match=sentence) as caught:
        ranks.ask(rounds, blow)
    assert time.monotonic() - started < DEADLINE_S + 25  # under load
    assert "\n" not in str(caught.value)
    if blow == "error":
        assert "raised by rank 1 of 2" in caught.value.__notes__[-1]
    assert not any(psutil.pid_exists(one) for one in pids)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RunError, match="stopped after an earlier error"):
        ranks.ask(pid)


@gathered
def refuse(ranks: Ranks) -> None:
    raise ConfigError("all of us say so")


def test_ranks_that_fail_alike_go_on() -> None:
    with two_ranks(held, timeout_s=DEADLINE_S) as ranks:
        with pytest.raises(ConfigError, match="all of us say so"):
            ranks.ask(refuse)
        assert len(set(ranks.ask(pid))) == 2
