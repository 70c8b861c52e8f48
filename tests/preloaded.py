"""Commands of `agentrl` in forked children of one process that has imported what a run needs.

A run of two steps takes about a second so, and five in an interpreter of its own. All else is as
there: a child has only what it is told, and goes through the command's own entry and exit.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

NEEDED = (
    *("peft", "transformers.models.llama.modeling_llama"),
    *("agentrl.orchestration.jobs", "agentrl.orchestration.store", "agentrl.orchestration.parts"),
    *("agentrl.engine.local.engine", "agentrl.trainer.executor", "agentrl.trainer.trainer"),
)


class Preloaded:
    """The process; use it as a context."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """What `agentrl ARGUMENTS` does in a folder; its time is the test's own."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            asked = [list(arguments), str(cwd), str(out), str(err)]
            self._server.stdin.write(json.dumps(asked).encode() + b"\n")
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            said = (out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
        return subprocess.CompletedProcess(arguments, code, *said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)  # with a command that ran out of time
        self._server.communicate()


def serve() -> int:
    """Fork for each line of the standard input; its command's exit code is the answer."""
    for name in NEEDED:
        importlib.import_module(name)
    gc.freeze()
    for line in iter(sys.stdin.buffer.readline, b""):
        pid = os.fork()
        if pid == 0:
            return become(*json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(1, b"%d\n" % code)
    return 0


def become(arguments: list[str], cwd: str, out: str, err: str) -> int:
    """Be the command `agentrl ARGUMENTS` in this process."""
    from agentrl.cli import entry

    for fd, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_CREAT | os.O_WRONLY),
        (2, err, os.O_CREAT | os.O_WRONLY),
    ):
        os.dup2(os.open(path, flags), fd)
    os.chdir(cwd)
    sys.argv = ["agentrl", *arguments]
    sys.path[0] = str(Path(sys.executable).parent)
    return entry()


if __name__ == "__main__":
    sys.exit(serve())
