"""Runs suites in forks of an interpreter that has loaded pytest: half of a short run is that.

A script that loads `runner.py`. For each line of standard input, `{"stdin", "stdout", "stderr",
"cpu_s"}`, it forks, connects the files, limits the processor time and lets the runner work; it
prints the child's id when it begins, and its processor time in seconds when it is over.
"""

import importlib.util
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn


def main() -> None:
    """Serve until standard input ends."""
    path, tools = sys.argv[1:3]
    spec = importlib.util.spec_from_file_location("agentrl_runner", path)
    runner = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # the file is there
    spec.loader.exec_module(runner)  # type: ignore[union-attr]
    sys.path.append(tools)
    load()
    sys.path.remove(tools)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            run(job, runner.main)
        print(child, flush=True)
        _, _, used = os.wait4(child, 0)
        print(used.ru_utime + used.ru_stime, flush=True)


def load() -> None:
    """Load pytest with its own plugins, by letting it collect nothing."""
    import pytest

    real = os.dup(1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as empty:
        pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "--rootdir", empty, empty])
    sys.stdout.flush()
    os.dup2(real, 1)
    os.close(real)


def run(job: dict[str, str], main: Callable[[], int]) -> NoReturn:
    """In the child: run one request and end."""
    code = 70
    try:
        os.setsid()
        for fd, (name, flags) in enumerate(
            [("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)]
        ):
            os.dup2(os.open(job[name], flags), fd)
        seconds = int(job["cpu_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # the one that was read ahead
        code = main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
