"""A disk that takes no more: one sentence, what is there stays, and the run goes on."""

import os
import resource
import stat
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.engine.local.models.resolve import TINY, resolve_model, resolve_tokenizer
from agentrl.run_dir import read_episodes, read_lines
from agentrl.trainer import checkpoint

ENV = f"{Path(__file__).parent / 'digits_env.py'}:Digits"
FLAGS = [
    *("--env", ENV, "--threads", "1", "--checkpoint.every", "1", "--steps", "2"),
    *("--rollout.tasks-per-step", "2", "--group-size", "2", "--rollout.max-new-tokens", "4"),
]


@pytest.fixture(scope="module", autouse=True)
def made_model() -> None:
    """The cache has what a run begins with, whichever test is the first."""
    resolve_model(TINY)
    resolve_tokenizer(TINY)


@contextmanager
def no_file_above(num_bytes: int) -> Generator[None]:
    """The kernel refuses each byte beyond, in every file, as it does where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def pass_by(*_: object) -> None:
    """Check nothing."""


@pytest.mark.parametrize(
    ("num_bytes", "what"),
    [
        (1_000, "config.toml"),
        (17_000, "episodes/step-000001.parquet"),
        (700_000, "checkpoints/step-000001"),
        (1_310_000, "checkpoints/step-000001"),
    ],
)
def test_what_the_disk_refuses_is_said_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    num_bytes: int,
    what: str,
) -> None:
    monkeypatch.setattr(checkpoint, "_check_disk_has_space", pass_by)
    command = ["train", *FLAGS, "--runs-dir", str(tmp_path), "--name", "a"]
    run = tmp_path / "a"
    with no_file_above(num_bytes):
        assert main(command) == 1
    assert capsys.readouterr().err == (
        f"agentrl: error: {run / what}: could not be written (File too large); what was there "
        "before is intact, so free some space or make the place writable, and go on\n"
    )
    assert read_lines(run / "events.jsonl")[-1]["event"] == "stopped"
    if what == "config.toml":
        assert main(command) == 0
    else:
        assert main(["train", "--resume", str(run)]) == 0
    assert [line["step"] for line in read_lines(run / "metrics.jsonl")] == [1, 2]
    files = (run / "episodes").glob("step-*.parquet")
    trained = Counter((e.group, e.member) for file in files for e in read_episodes(file))
    assert (len(trained), {*trained.values()}) == (8, {1})
    assert not list(run.rglob("*.tmp"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *FLAGS, "--runs-dir", str(tmp_path), "--name", "a"]
    assert main(command) == 0
    (tmp_path / "a").chmod(0o500)
    assert main(["train", "--resume", str(tmp_path / "a"), "--steps", "3"]) == 1
    assert "(Permission denied); what was there before is intact" in capsys.readouterr().err
    (tmp_path / "a").chmod(0o700)


def test_all_files_of_a_run_follow_the_umask(tmp_path: Path) -> None:
    umask = 0o027
    before = os.umask(umask)
    try:
        command = ["train", *FLAGS, "--runs-dir", str(tmp_path), "--name", "a"]
        assert main(command) == 0
    finally:
        os.umask(before)
    for path in (path for path in tmp_path.rglob("*") if not path.is_symlink()):
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
