"""Real processes die, hang or answer wrongly in a run; what is trained on stays the same.

Each role is struck once, from inside, where it works: so the phase is certain. A deadline of 2 s
says when what hangs counts as dead. A disk that is full in each place where a run writes is in
`test_full_disk.py`: one sentence, and each pair is trained once when the run was resumed.
"""

# pyright: reportUnknownVariableType=false
# safetensors is typed in part only.

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file

import agentrl
from agentrl.engine.servers import launch as shared
from agentrl.engine.sglang import launch
from agentrl.envs import ToolEnv
from agentrl.errors import RunError
from agentrl.run_dir import read_episodes
from agentrl.sandboxes.leftovers import find_sandboxes
from agentrl.sandboxes.probe import probe_bwrap
from agentrl.types import Episode, Invalid
from agentrl.workers.channel import is_stopped
from tests.e2e.chaos_env import Apart, Boxed, Judged, Said, surrogate
from tests.renaming import Renaming

STEPS, GROUPS, MEMBERS = 3, 2, 2
DEADLINE_S = 2
PLACE = Path(__file__).parent
SAID = f"{PLACE / 'chaos_env.py'}:Said"
LEFT_S = 10.0


@pytest.fixture
def chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Choose place and kind by `CHAOS_AT` and `CHAOS_KIND`; no process may be left behind."""
    monkeypatch.setenv("CHAOS_FOLDER", str(tmp_path))
    yield monkeypatch
    end = time.monotonic() + LEFT_S
    while left := processes_of(tmp_path):
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.1)


def processes_of(folder: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            # Torch's own helper ends with the process of these tests.
            is_ours = process.environ().get("CHAOS_FOLDER") == str(folder)
            if is_ours and process.name() != "torch_shm_manager":
                found.append(process)
        except psutil.Error:
            continue
    return found


def settings(model: Path, out: Path) -> dict[str, Any]:
    return {
        "name": "chaos",
        "model": str(model),
        "runs_dir": str(out),
        "steps": STEPS,
        "threads": 1,
        "tasks_per_step": GROUPS,
        "group_size": MEMBERS,
        "rollout": {"max_new_tokens": 6, "concurrency": 8, "attempts": 2},
        "checkpoint": {"every": 1},
        "fault": {"deadline_s": DEADLINE_S},
    }


def invalid_of(out: Path, steps: int = STEPS) -> tuple[Counter[tuple[int, int]], Sequence[Episode]]:
    """How often each member of each group was trained on, and the attempts without a score."""
    files = [out / "chaos" / "episodes" / f"step-{n:06d}.parquet" for n in range(1, steps + 1)]
    episodes = [episode for file in files for episode in read_episodes(file)]
    trained = Counter((e.group, e.member) for e in episodes if e.valid)
    return trained, [e for e in episodes if not e.valid]


def check_each_pair_is_trained_once(out: Path, steps: int = STEPS) -> list[Invalid]:
    """Why attempts have no score; others took their places."""
    trained, invalid = invalid_of(out, steps)
    assert set(trained.values()) == {1}
    assert len(trained) == steps * GROUPS * MEMBERS
    assert all((e.group, e.member) in trained for e in invalid)
    return [e.outcome for e in invalid if isinstance(e.outcome, Invalid)]


@pytest.mark.parametrize(
    ("env", "place", "kind", "blame", "said"),
    [
        (Apart, "score", "SIGKILL", "environment", "died in ascore"),
        (Apart, "setup", "SIGSTOP", "environment", "the process stood still for 2 s"),
        (Judged, "verifier", "SIGKILL", "verifier", "the process was killed by SIGKILL"),
        (Judged, "verifier", "SIGSTOP", "verifier", "the process stood still for 2 s"),
        (Judged, "verifier", "wrong", "verifier", "returned nan"),
    ],
)
def test_what_an_environment_or_a_verifier_breaks_off_is_played_again(
    tiny_folder: Path,
    tmp_path: Path,
    chaos: pytest.MonkeyPatch,
    env: type[ToolEnv],
    place: str,
    kind: str,
    blame: str,
    said: str,
) -> None:
    chaos.setenv("CHAOS_AT", place)
    chaos.setenv("CHAOS_KIND", kind)
    started = time.monotonic()
    with agentrl.Run(env, **settings(tiny_folder, tmp_path)) as run:
        assert [result.step for result in run] == [1, 2, 3]
    (found,) = check_each_pair_is_trained_once(tmp_path)
    assert (found.blame, said in found.reason) == (blame, True), found
    assert time.monotonic() - started < 50  # no limit of a call (30 s) or of a turn was waited for


@pytest.fixture
def struck_host(
    request: pytest.FixtureRequest, chaos: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[bytes]]:
    """A provider of sandboxes, and one that stands by at its socket; nothing of theirs is left.

    Whoever looks after them kills the first one if it stands still for longer than the deadline.
    """
    if not (probe := probe_bwrap()).works and os.environ.get("REQUIRE_BWRAP") != "1":
        pytest.skip(probe.detail)
    chaos.setenv("CHAOS_AT", "sandbox host")
    chaos.setenv("CHAOS_KIND", request.param)
    with ExitStack() as ends, socket.create_server(("127.0.0.1", 0)) as listening:
        chaos.setenv("SANDBOX_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        command = [sys.executable, str(PLACE / "chaos_sandbox_host.py"), str(listening.fileno())]
        made: list[subprocess.Popen[bytes]] = []
        for _ in range(2):
            host = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()])
            made.append(ends.enter_context(host))
            ends.callback(host.kill)
        serving, other = made

        def look_after() -> None:
            while serving.poll() is None and not is_stopped(serving.pid):
                time.sleep(0.05)
            if serving.poll() is None:
                time.sleep(1.5 * DEADLINE_S)
            serving.kill()
            serving.wait()
            close_stdin(other)

        close_stdin(serving)
        thread = threading.Thread(target=look_after, daemon=True)
        thread.start()
        yield serving
        other.terminate()
        assert other.wait(LEFT_S) == 0
        thread.join(LEFT_S)
    assert not {found.pid for found in find_sandboxes()} & {host.pid for host in made}


def close_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.sandbox
@pytest.mark.bwrap
@pytest.mark.parametrize(
    ("struck_host", "said"),
    [("SIGKILL", "does not answer"), ("SIGSTOP", "gave no sign of life for 2 s")],
    indirect=["struck_host"],
)
def test_what_a_sandbox_host_breaks_off_is_played_again_on_another(
    tiny_folder: Path, tmp_path: Path, struck_host: subprocess.Popen[bytes], said: str
) -> None:
    with agentrl.Run(Boxed, **settings(tiny_folder, tmp_path)) as run:
        assert [result.step for result in run] == [1, 2, 3]
    found = check_each_pair_is_trained_once(tmp_path)
    assert 1 <= len(found) <= GROUPS * MEMBERS  # all that it held
    assert {invalid.blame for invalid in found} == {"sandbox"}
    assert any(said in invalid.reason for invalid in found), found
    assert struck_host.returncode == -signal.SIGKILL


def make_renaming(*_: object) -> Renaming:
    return Renaming()


async def pass_server(*_: object, **__: object) -> tuple[()]:
    return ()


@pytest.fixture
def even_folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A model whose logits are all alike."""
    folder = tmp_path / "even"
    shutil.copytree(tiny_folder, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def served(tmp_path: Path, chaos: pytest.MonkeyPatch) -> None:
    """An installation of SGLang that starts the stand-in."""
    place = tmp_path / "sglang"
    (place / "bin").mkdir(parents=True)
    (place / "agentrl-complete").write_text("gpu")
    stand_in = PLACE / "chaos_server.py"
    (place / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in} "$@"\n')
    (place / "bin" / "python").chmod(0o755)
    chaos.setenv("AGENTRL_SGLANG", str(place))
    chaos.setattr(launch, "make_transport", make_renaming)
    chaos.setattr(shared, "check_server", pass_server)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSTOP", "wrong"])
def test_an_engine_that_is_lost_is_started_again_and_its_requests_are_sent_again(
    even_folder: Path, tmp_path: Path, chaos: pytest.MonkeyPatch, kind: str
) -> None:
    chaos.setenv("CHAOS_AT", "engine")
    chaos.setenv("CHAOS_KIND", kind)
    given: dict[str, Any] = {**settings(even_folder, tmp_path), "engine": "sglang", "lr": 1e-12}
    started = time.monotonic()
    with agentrl.Run(Said, **given) as run:
        assert [result.step for result in run] == [1, 2, 3]
    found = check_each_pair_is_trained_once(tmp_path)
    logs = list((tmp_path / "chaos" / "engine").glob("*.log"))
    if kind == "wrong":
        assert [invalid.blame for invalid in found] == ["engine"]
        assert len(logs) == 1
    else:
        assert not found
        assert len(logs) == 2
    assert time.monotonic() - started < 50  # a request has 600 s


def test_a_run_that_is_killed_and_resumed_under_staleness_4_trains_each_prompt_once(
    tiny_folder: Path, tmp_path: Path, chaos: pytest.MonkeyPatch
) -> None:
    chaos.setenv("CHAOS_AT", "run")
    chaos.setenv("CHAOS_KIND", "SIGKILL")
    given = [
        *("--env", SAID, "--model", str(tiny_folder), "--runs-dir", str(tmp_path)),
        *("--name", "chaos", "--steps", "8", "--threads", "1", "--checkpoint.every", "2"),
        *("--rollout.tasks-per-step", str(GROUPS), "--group-size", str(MEMBERS)),
        *("--rollout.max-new-tokens", "6", "--async.staleness", "4"),
    ]
    killed = subprocess.run(
        [sys.executable, "-m", "agentrl", "train", *given],
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert killed.returncode == -9, killed.stderr.decode()
    with agentrl.Run(SAID, name="chaos", runs_dir=str(tmp_path), resume=True) as run:
        assert 0 < run.step < 8
        assert [result.step for result in run][-1] == 8
    assert not check_each_pair_is_trained_once(tmp_path, steps=8)


@pytest.mark.ranks
@pytest.mark.timeout(150)
def test_a_rank_that_hangs_ends_the_run_in_a_sentence_and_it_can_be_resumed(
    tiny_folder: Path, tmp_path: Path, chaos: pytest.MonkeyPatch
) -> None:
    chaos.setenv("CHAOS_AT", "rank")
    chaos.setenv("CHAOS_KIND", "SIGSTOP")
    given: dict[str, Any] = settings(tiny_folder, tmp_path)
    given |= {"trainer": {"ranks": 2}, "loss": surrogate}
    said = r"^rank \d of 2 ended during update \(the process stood still for 2 s and was killed\)"
    with pytest.raises(RunError, match=said), agentrl.Run(Said, **given) as run:
        list(run)
    with agentrl.Run(
        Said, name="chaos", runs_dir=str(tmp_path), resume=True, loss=surrogate
    ) as run:
        assert 0 < run.step < STEPS
        list(run)
    assert not check_each_pair_is_trained_once(tmp_path)
