"""`code_sandbox`: write a program that passes hidden tests."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from agentrl.config.anchor import PathText
from agentrl.envs.agents import call_tool
from agentrl.envs.code_tasks import draw, make
from agentrl.envs.grading import SOLUTION, check_tests, share_passed
from agentrl.envs.sandboxed import SandboxConfig, SandboxEnv
from agentrl.envs.tasks import SPLITS, read_tasks, require_split, split_of
from agentrl.errors import ConfigError
from agentrl.sandboxes import FileAccessError
from agentrl.tools import tool
from agentrl.tools.sandboxed import BashTool, WriteFileTool
from agentrl.types import Agent, AssistantTurn, EpisodeView, Score, Task

_MAX_SOLUTION_BYTES = 64 << 10


class CodeSandbox(BashTool, WriteFileTool, SandboxEnv):
    """Write solution.py, run it, submit it: it is worth 1 if it passes all hidden tests.

    The tests run after everything of the episode has been killed and thrown away, but for that one
    file. A family of made tasks with its number belongs to one split.
    """

    class Config(SandboxConfig):
        """Parameters of the tasks."""

        tasks: PathText = Field(
            default="",
            description="a JSONL file of tasks (prompt, answer: the tests); empty: made by a seed",
        )
        test_timeout_s: float = Field(default=10.0, gt=0, description="seconds of one test")
        grading_s: float = Field(
            default=40.0, gt=0, le=80.0, description="seconds of all tests together"
        )

        @functools.cached_property
        def tasks_by_split(self) -> Mapping[str, Sequence[Task]]:
            """Those of the file, read once for all that is played with these parameters."""
            file = Path(self.tasks)
            found: dict[str, list[Task]] = {split: [] for split in SPLITS}
            for task in read_tasks(file):
                check_tests(task.answer, f"task {task.id} of {file}")
                found[split_of("code_sandbox", task.id)].append(task)
            return found

    hook_timeout_s = 120.0
    """More than `grading_s` may be: what the policy's code does is scored."""
    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]

    system = "Write the file solution.py, try it, and submit it when it is right."
    max_turns = 12

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """A task that belongs to the split: of the file, or a new one."""
        require_split(split)
        if config.tasks:
            if not (tasks := config.tasks_by_split[split]):
                raise ConfigError(f"no task in {config.tasks} belongs to the split {split}")
            return tasks[int(rng.integers(len(tasks)))]
        family, k, program = draw(rng)
        while split_of("code_sandbox", family.words, k) != split:
            family, k, program = draw(rng)
        return make(rng, family, k, program=program)

    @tool
    async def submit(self) -> str:
        """Hand in solution.py and finish."""
        return self.finish("submitted")

    async def score(self, answer: str) -> Score:
        """1 if all tests pass; their share is a part of its own."""
        try:
            code = await self.sandbox.read_file(SOLUTION, max_bytes=_MAX_SOLUTION_BYTES)
        except FileAccessError:
            return Score(value=0.0, parts={"tests": 0.0})
        config = self.config
        share = await share_passed(
            self.sandbox, code, self.task.answer, config.test_timeout_s, config.grading_s
        )
        return Score(value=float(share == 1.0), parts={"tests": share})

    @classmethod
    def expert(cls) -> Agent:
        """Writes the task's solution and submits it."""
        return _Expert()


class _Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        if view.messages[-1].role == "tool":
            return call_tool("submit")
        return call_tool("write_file", path=SOLUTION, content=view.task.data["solution"])
