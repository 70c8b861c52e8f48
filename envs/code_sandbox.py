"""`code_sandbox`: write a program that passes hidden tests."""

import functools
from pathlib import Path

import numpy as np
from pydantic import Field

from agentrl.config.anchor import PathText
from agentrl.envs.code_tasks import draw, make
from agentrl.envs.grading import SOLUTION, check_tests, share_passed
from agentrl.envs.sandboxed import SandboxConfig, SandboxEnv
from agentrl.envs.splits import require_split, split_of
from agentrl.envs.tasks import read_tasks
from agentrl.errors import ConfigError
from agentrl.sandboxes import FileAccessError
from agentrl.tools import tool
from agentrl.tools.sandboxed import BashTool, WriteFileTool
from agentrl.types import Agent, AssistantTurn, EpisodeView, Score, Task, ToolCall

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
            tasks = tasks_of(config.tasks, split)
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


@functools.cache
def tasks_of(file: str, split: str) -> tuple[Task, ...]:
    """The tasks of a file that belong to a split, by their content."""
    tasks = read_tasks(Path(file))
    for task in tasks:
        check_tests(task.answer, f"task {task.id} of {file}")
    found = tuple(task for task in tasks if split_of("code_sandbox", task.id) == split)
    if not found:
        raise ConfigError(f"none of the {len(tasks)} tasks in {file} belongs to the split {split}")
    return found


class _Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        if view.messages[-1].role == "tool":
            return _call("submit")
        return _call("write_file", path=SOLUTION, content=view.task.data["solution"])


def _call(name: str, **arguments: str) -> AssistantTurn:
    return AssistantTurn(calls=(ToolCall(name=name, arguments=dict(arguments), id="call_0"),))
