import os
import signal
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import Limits, workspace
from agentrl.sandboxes.capture import Capture
from agentrl.sandboxes.cgroup import Group, Hierarchy
from agentrl.sandboxes.owner import Owner
from agentrl.sandboxes.process import LocalProcess
from agentrl.sandboxes.seccomp import DENIED, profile, program


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(min_value=1, max_value=40))
def test_a_capture_keeps_head_and_tail(chunks: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    whole = b"".join(chunks)
    assert capture.total == len(whole)
    assert capture.truncated == (len(whole) > limit)
    if not capture.truncated:
        assert capture.data() == whole
        return
    head, tail = whole[: limit - limit // 2], whole[len(whole) - limit // 2 :]
    missing = len(whole) - limit
    assert capture.data() == head + b"\n[... %d bytes left out ...]\n" % missing + tail


def test_owners_are_told_apart() -> None:
    this = Owner.this()
    assert Owner.parse(str(this)) == this
    assert not this.is_gone
    assert Owner(this.host, this.boot, this.pid, this.started + 1).is_gone
    assert not Owner("elsewhere", this.boot, this.pid, this.started + 1).is_gone
    assert Owner(this.host, "00000000-1", this.pid, this.started).is_gone
    other_namespace = this.boot.partition("-")[0] + "-1"
    assert not Owner(this.host, other_namespace, 1, 1).is_gone
    assert Owner.parse("probe") is None


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    this = Owner.this()
    assert Owner(this.host, this.boot, child.pid, 0).is_gone
    child.wait()


def _tree_v2(root: Path, name: str) -> Path:
    """A group as the kernel shows it (recorded on 6.1)."""
    folder = root / f"agentrl-{name}"
    folder.mkdir(parents=True)
    for file, text in {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
        "pids.max": "max",
        "cpu.max": "max 100000",
        "cgroup.procs": "",
    }.items():
        (folder / file).write_text(text)
    return folder


@pytest.mark.cgroup2
def test_limits_of_version_2(tmp_path: Path) -> None:
    group = Group(Hierarchy(2, (tmp_path,)), "x")
    folder = _tree_v2(tmp_path, "x")
    group.create(Limits(memory_bytes=1 << 28, processes=9, cpus=1.5))
    found = {file.name: file.read_text() for file in folder.iterdir()}
    assert found["memory.max"] == str(1 << 28)
    assert found["memory.swap.max"].startswith("0")
    assert found["pids.max"].startswith("9")
    assert found["cpu.max"].startswith("150000 100000")
    assert group.entrances == (str(folder / "cgroup.procs"),)
    assert group.oom_kills() == 2


@pytest.mark.cgroup2
def test_a_missing_controller_of_version_2_is_seen(tmp_path: Path) -> None:
    folder = _tree_v2(tmp_path, "x")
    (folder / "memory.max").unlink()
    with pytest.raises(OSError, match=r"subtree_control|memory\.max"):
        Group(Hierarchy(2, (tmp_path,)), "x").create(Limits())
    assert Hierarchy.find(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.cgroup2
def test_a_delegated_group_of_version_2_is_beside_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is not ours to use, the slice around our own group is."""
    monkeypatch.setattr("agentrl.sandboxes.cgroup._EMPTY_S", 0.0)  # files are no groups to remove
    slice_ = tmp_path / "user.slice"
    (slice_ / "own.scope").mkdir(parents=True)
    folder = _tree_v2(slice_, f"probe-{os.getpid()}")
    own = tmp_path / "self"
    own.write_text("0::/user.slice/own.scope\n")
    found = Hierarchy.find(tmp_path, own)
    assert found is not None
    assert found.version == 2
    assert found.parents[0].resolve() == folder.parent


def _decide(filter_: bytes, arch: int, number: int, flags: int = 0) -> int:
    """Run a BPF program on a system call, as the kernel does."""
    code = [struct.unpack_from("=HBBI", filter_, at) for at in range(0, len(filter_), 8)]
    data = {0: number, 4: arch, 16: flags}
    at, value = 0, 0
    while True:
        operation, yes, no, k = code[at]
        at += 1
        if operation == 0x06:
            return int(k)
        if operation == 0x20:
            value = data[k]
            continue
        taken = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
        at += yes if taken else no


@pytest.mark.parametrize(
    ("machine", "column", "arch"),
    [
        ("x86_64", 0, 0xC000003E),
        ("aarch64", 1, 0xC00000B7),
    ],
)
def test_the_filter_denies_what_it_lists_and_nothing_else(
    machine: str, column: int, arch: int
) -> None:
    filter_ = program(machine)
    denied = {numbers[column] for numbers in DENIED.values()}
    clone = (56, 220)[column]
    for number in range(470):
        found = _decide(filter_, arch, number)
        expected = 0x00050001 if number in denied else 0x7FFF0000
        assert found == (0x00050026 if number == 435 else expected), number
    assert _decide(filter_, arch, clone, 0x10000000) == 0x00050001
    assert _decide(filter_, arch, clone, 0x11) == 0x7FFF0000
    assert _decide(filter_, arch ^ 1, 0) == 0x80000000
    assert _decide(filter_, arch, 0x40000000) == 0x00050026
    assert program("riscv64") == b""
    assert '"ptrace"' in profile()


def test_the_last_end_takes_nothing_from_a_start_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder of the process goes with its last sandbox, and another begins at that moment."""

    def ours(pid: int) -> Path:
        return tmp_path / "all" / "ours"

    monkeypatch.setattr(workspace, "_make_owner_folder_path", ours)
    workspace.owner_folder()
    made: list[Path] = []
    start = threading.Thread(target=lambda: made.append(workspace.new_folder("next")))

    def empty(folder: Path) -> tuple[Path, ...]:
        start.start()
        start.join(0.2)
        return ()

    monkeypatch.setattr(workspace, "sandboxes_in", empty)
    workspace.close_owner_folder()
    start.join()
    assert made[0].is_dir()


async def test_a_command_hears_interrupts_where_this_process_does_not() -> None:
    heard: list[bytes] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = await LocalProcess.start(
            ["bash", "-c", "trap 'echo heard; exit' INT; kill -INT $$; echo deaf"],
            lambda fd, data: heard.append(data),
            cwd="/",
            env={},
        )
        await process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert b"".join(heard) == b"heard\n"
