"""Do two trees train the same weights and write the same episodes? Exits with 1 if not.

Weights depend on the machine's rounding, so they are compared with those that another commit's tree
trains beside it: `git worktree add ../before COMMIT`, then

    python -m tests.golden_runs ../before .
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

pq: Any = import_module("pyarrow.parquet")

SMALL = ["--tasks-per-step", "4", "--group-size", "4", "--steps", "2", "--warm-start.updates", "4"]
CALCULATOR = ["--env", "calculator", *SMALL]
RUNS = {
    "grpo": [*CALCULATOR, "--trainer.algorithm", "grpo"],
    "ppo": [*CALCULATOR, "--trainer.algorithm", "ppo"],
    "lora": [*CALCULATOR, "--trainer.algorithm", "grpo", "--trainer.lora.rank", "4"],
    "segments": [
        *("--env", "long_haul", *SMALL, "--max-turns", "12"),
        *("--context", "summarise", "--context.at", "96"),
    ],
}


def main() -> int:
    """Train each run in both trees; prints what differs."""
    before, after = (Path(argument).resolve() for argument in sys.argv[1:])
    failed = 0
    for name, flags in RUNS.items():
        first, second = (digests(tree, name, flags) for tree in (before, after))
        different = sorted(k for k in first | second if first.get(k) != second.get(k))
        print(f"{name}: {len(first)} digests, {', '.join(different) or 'all'} ", end="")
        print("differ" if different else "equal", flush=True)
        failed += bool(different)
    return int(failed > 0)


def digests(tree: Path, name: str, flags: list[str]) -> dict[str, str]:
    """What a run of this tree leaves, file by file: its weights, and each column of episodes."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree), "AGENTRL_CACHE": f"{folder}/cache"}
        runs = ["--deterministic", "true", "--threads", "1", "--name", name, "--runs-dir", folder]
        done = subprocess.run(
            [sys.executable, "-m", "agentrl", "train", *flags, *runs],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        run = Path(folder) / name
        found = {str(f.relative_to(run)): digest(f.read_bytes()) for f in weights(run)}
        for file in sorted(run.rglob("*.parquet")):
            table = pq.read_table(file)
            for column in table.column_names:
                if column.endswith("_s"):  # seconds
                    continue
                content = repr(table.column(column).to_pylist()).encode()
                found[f"{file.relative_to(run)}:{column}"] = digest(content)
        return found


def weights(run: Path) -> list[Path]:
    """All weights below a run's directory."""
    return sorted(run.rglob("*.safetensors"))


def digest(content: bytes) -> str:
    """A short name for what it holds."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
