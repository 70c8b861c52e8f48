"""The whole Python API in a notebook: plain code in a running event loop."""

# pyright: reportUnknownMemberType=false
# (nbformat is typed in part)

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = """
import asyncio
import threading
import agentrl
from agentrl.envs import ToolEnv
from agentrl.types import Score, Task

class Letters(ToolEnv):
    tasks = {name: [Task(prompt=f"Task {i}") for i in range(4)] for name in ("train", "heldout")}

    def score(self, answer: str) -> float:
        return min(1.0, sum(c.isalpha() for c in answer) / 20)

few = dict(tasks_per_step=2, group_size=2, eval={"tasks": 2}, rollout={"max_new_tokens": 8})
assert asyncio.get_running_loop().is_running()
# ---
result = agentrl.train(Letters, steps=2, **few)
assert result.steps == 2 and result.model.is_dir()
assert agentrl.evaluate(Letters, model=str(result.model), **few).episodes == 2
assert len(agentrl.play(Letters, **few)) == 2
# ---
run = agentrl.Run(Letters, steps=3, **few)
run.__enter__()
steps = iter(run)
first = next(steps).step
# ---
assert [first, *(step.step for step in steps)] == [1, 2, 3]
assert run.evaluate().episodes == 2
run.__exit__(None, None, None)
# ---
env = Letters()
assert env.reset(seed=0)[0].startswith("Task")
assert env.step("abcd")[1] == 0.2
env.close()
# ---
import gymnasium
vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("agentrl/NumberGuess-v0")] * 2)
assert len(vector.reset(seed=1)[0]) == 2
vector.close()
# ---
from agentrl.envs import resolve_env
from agentrl.envs.check import check_env_class
assert check_env_class(resolve_env("number_guess"), num_tasks=2).ok
# ---
await asyncio.sleep(0)
assert not [t for t in threading.enumerate() if t.name.startswith("agentrl-loop")]
"""


@pytest.mark.timeout(240)  # a kernel of its own imports torch beside the other suites
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cells = [nbformat.v4.new_code_cell(c) for c in CELLS.split("# ---\n")]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources)
    client.execute(env=dict(os.environ))
