"""Runs suites in forks of an interpreter that has loaded pytest: half of a short run is that.

A script that imports `runner.py`. For each line of standard input, `{"stdin", "stdout", "stderr",
"cpu_s"}`, it forks, connects the files, limits the processor time and lets the runner work; it
prints the child's id when it begins, and its processor time in seconds when it is over.
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import NoReturn


def main() -> None:
    """Serve until standard input ends."""
    runner, tools = sys.argv[1:3]
    sys.path[:0] = [str(Path(runner).parent), tools]
    load(tools)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            run(job)
        print(child, flush=True)
        _, _, used = os.wait4(child, 0)
        print(used.ru_utime + used.ru_stime, flush=True)


def load(tools: str) -> None:
    """Load pytest with its own plugins, by letting it collect nothing."""
    import pytest

    real = os.dup(1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as empty:
        pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "--rootdir", empty, empty])
    sys.stdout.flush()
    os.dup2(real, 1)
    os.close(real)
    sys.path.remove(tools)


def run(job: dict[str, str]) -> NoReturn:
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
        import runner  # type: ignore[import-not-found]  # beside the script that is given

        code = runner.main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
