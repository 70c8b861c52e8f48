"""Runs training in forked children that kill themselves at chosen points, then resumes them.

Usage: kill_driver.py FOLDER POINT [POINT ...]; prints one JSON object per point. Forking after the
imports (of `parts` too) saves their time; nothing has started a thread by then.
"""

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import orjson
import torch

from agentrl.cli import main
from agentrl.engine.local.engine import LocalEngine
from agentrl.orchestration import parts, store
from agentrl.run_dir import EpisodesWriter, MetricsWriter, read_episodes
from agentrl.trainer import checkpoint
from agentrl.trainer.trainer import LocalTrainer

STEPS = 6
ENV = f"{Path(__file__).parent / 'digits_env.py'}:Digits"
FLAGS = [
    *("--deterministic", "--threads", "1", "--checkpoint.every", "2", "--steps", str(STEPS)),
    *("--rollout.tasks-per-step", "5", "--group-size", "4", "--rollout.max-new-tokens", "12"),
]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(owner: object, name: str, count: int) -> None:
    """Die at the `count`-th call of a function, halfway: before its body runs."""
    original: Callable[..., object] = getattr(owner, name)
    calls = 0

    def wrapped(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == count:
            die()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after_call(owner: object, name: str, count: int) -> None:
    """Die right after the `count`-th call of a function."""
    original: Callable[..., object] = getattr(owner, name)
    calls = 0

    def wrapped(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        result = original(*args, **kwargs)
        if calls == count:
            die()
        return result

    setattr(owner, name, wrapped)


def at_random_time() -> None:
    signal.signal(signal.SIGALRM, die)
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.05, 2.5))


POINTS: dict[str, Callable[[], None]] = {
    "never": lambda: None,
    "before the model is there": lambda: on_call(parts, "build_parts", 1),
    "first step": lambda: on_call(MetricsWriter, "write", 1),
    "mid-checkpoint": lambda: on_call(checkpoint, "write_manifest", 2),
    "before the checkpoint's name": lambda: on_call(checkpoint, "replace_folder", 2),
    "between episode file and checkpoint": lambda: on_call(LocalTrainer, "save", 2),
    "between episode file and metrics": lambda: on_call(MetricsWriter, "write", 4),
    "between checkpoint and episode file": lambda: after_call(LocalTrainer, "save", 1),
    "during the weight update": lambda: on_call(LocalEngine, "update_weights", 3),
    "after the weight update": lambda: on_call(EpisodesWriter, "write", 3),
    "epoch boundary": lambda: after_call(store.RunStore, "save", 2),
    "random": at_random_time,
}


def child(work: Callable[[], int]) -> int:
    """Run in a forked child; its wait status."""
    pid = os.fork()
    if pid == 0:
        os.dup2(2, 1)
        try:
            code = work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            code = 99
        os._exit(code)
    return os.waitpid(pid, 0)[1]


def started(root: Path, point: str) -> int:
    POINTS[point]()
    return main(["train", "--env", ENV, "--runs-dir", str(root), "--name", "run", *FLAGS])


def go_on(root: Path) -> int:
    """Resume; a run killed at a random time before it had a directory is started again."""
    if (root / "run" / "config.toml").exists():
        return main(["train", "--resume", "run", "--runs-dir", str(root)])
    return started(root, "never")


def play(root: Path, point: str) -> dict[str, object]:
    """Start, get killed, resume until done; what came of it."""
    status = child(lambda: started(root, point))
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    resumed = 0
    while not (root / "run" / "model" / "config.json").exists() and resumed < 3:
        resumed += 1
        child(lambda: go_on(root))
    run = root / "run"
    tasks: Counter[str] = Counter()
    for step in range(1, STEPS + 1):
        for episode in read_episodes(run / "episodes" / f"step-{step:06}.parquet"):
            tasks[f"{step}:{episode.task.id}:{episode.member}:{episode.attempt}"] += 1
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    return {
        "point": point,
        "killed": killed,
        "resumed": resumed,
        "tasks": dict(sorted(tasks.items())),
        "steps": [orjson.loads(line)["step"] for line in lines],
        "weights": blake2b((run / "model" / "model.safetensors").read_bytes()).hexdigest(),
        "leftovers": sorted(
            p.name for p in (run / "checkpoints").iterdir() if "step-" not in p.name
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number, name in enumerate(sys.argv[2:]):
        random.seed(number)
        outcome = play(Path(sys.argv[1]) / str(number), name)
        print(orjson.dumps(outcome).decode(), flush=True)
