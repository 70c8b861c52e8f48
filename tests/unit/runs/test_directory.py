import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, RunError
from agentrl.run_dir import RunDirectory, check_disk
from agentrl.run_dir.directory import run_names
from agentrl.run_dir.writing import write_atomic


def test_automatic_names_count_up(tmp_path: Path) -> None:
    names: list[str] = []
    for _ in range(3):
        with RunDirectory.create(tmp_path / "runs", prefix="calculator") as run:
            run.write_config("a = 1\n")
            names.append(run.name)
    assert names == ["calculator-001", "calculator-002", "calculator-003"]
    assert run_names(tmp_path / "runs") == names
    with RunDirectory.create(tmp_path, prefix="my env/x.py:MyEnv") as run:
        assert run.name == "my-env-x-py-MyEnv-001"


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "a") as run:
        run.write_config("x = 1\n")
    with pytest.raises(ConfigError) as caught:
        RunDirectory.create(tmp_path, "a")
    assert str(caught.value) == (
        f"{tmp_path}/a: already holds a run (config.toml); choose another --name,"
        " or continue it with --resume a"
    )


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "a"):
        reason = f"in use by process {os.getpid()} on "
        with pytest.raises(ConfigError, match=reason):
            RunDirectory.create(tmp_path, "a")
        with pytest.raises(ConfigError, match=reason):
            RunDirectory.open(tmp_path, "a", write=True)
        assert RunDirectory.open(tmp_path, "a").name == "a"
    RunDirectory.open(tmp_path, "a", write=True).close()


def test_the_lock_of_a_killed_process_is_stale(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal\n"
        "from agentrl.run_dir.directory import RunDirectory\n"
        f"run = RunDirectory.create(pathlib.Path({str(tmp_path)!r}), 'a')\n"
        "run.write_config('x = 1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with RunDirectory.open(tmp_path, "last", write=True) as run:
        assert run.name == "a"


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    RunDirectory.create(tmp_path, "a").close()
    RunDirectory.create(tmp_path, "a").close()


@pytest.mark.parametrize("name", ["", "last", "..", ".a", "a/b", "-x", "a b", "x" * 101])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--name: got "):
        RunDirectory.create(tmp_path, name)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another --runs-dir"):
        RunDirectory.create(tmp_path / "file" / "runs")


def test_a_run_is_found_by_name_path_and_last(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with RunDirectory.create(tmp_path, name) as run:
            run.write_config("x = 1\n")
    assert RunDirectory.open(tmp_path, "first").path == tmp_path / "first"
    assert RunDirectory.open(Path("elsewhere"), str(tmp_path / "first")).name == "first"
    assert RunDirectory.open(tmp_path, "last").name == "second"
    with RunDirectory.open(tmp_path, "first", write=True) as run:
        assert RunDirectory.open(tmp_path, "last").name == "second"  # it may still be refused
        run.mark_last()
    assert RunDirectory.open(tmp_path, "last").name == "first"
    assert RunDirectory.open(Path("elsewhere"), str(tmp_path / "last")).name == "first"
    assert (tmp_path / "last" / "config.toml").read_text() == "x = 1\n"


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no last run yet"):
        RunDirectory.open(tmp_path, "last")
    RunDirectory.create(tmp_path, "calculator-001").close()
    with pytest.raises(ConfigError, match="did you mean calculator-001"):
        RunDirectory.open(tmp_path, "calculator-01")


def test_disk_space_is_checked_before_the_folder_exists(tmp_path: Path) -> None:
    check_disk(tmp_path / "a" / "b", 1)
    with pytest.raises(ConfigError, match=r"expected at least 1000 TB; free some space"):
        check_disk(tmp_path / "a" / "b", 10**15)


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(
        RunError, match=r"/x: could not be written \(No space left on device\); what"
    ):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_could_not_begin_is_forgotten(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "good") as good:
        good.write_config("steps = 1")
    with RunDirectory.create(tmp_path, "bad") as bad:
        bad.write_config("steps = 2")
        assert (tmp_path / "last").readlink().name == "bad"
        bad.events.write_text('{"event": "stopped"}\n')
        bad.forget()
    assert (tmp_path / "last").readlink().name == "good"
    assert [p.name for p in sorted(bad.path.iterdir())] == ["events.jsonl", "run.lock"]
    RunDirectory.create(tmp_path, "bad").close()
