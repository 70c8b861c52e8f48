"""The code in docs/environments.md runs, and its Shop can be won."""

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import ToolEnv
from agentrl.envs.check import check_env_class
from agentrl.types import AssistantTurn, Score, ToolCall

TEXT = (Path(__file__).parents[3] / "docs/environments.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(code, "docs/environments.md", "exec"), names)
    return names


@pytest.mark.parametrize("code", BLOCKS)
def test_code_runs(code: str) -> None:
    run(code)


async def test_the_shop_pays_for_the_right_orders_only() -> None:
    shop: type[ToolEnv] = run(BLOCKS[0])["Shop"]
    env = shop()
    task = shop.task_at(0, split="train", seed=1)
    for wanted, value in ((task.answer, 1.0), (task.answer[:-1], 0.0)):
        await env.areset(seed=0, options={"task": task})
        calls = [ToolCall(name="cancel", arguments={"order_id": n}) for n in wanted]
        await env.advance(AssistantTurn(calls=(*calls, ToolCall(name="done"))))
        assert await env.ascore() == Score(value=value)
    await env.aclose()


def test_the_shop_is_sound() -> None:
    report = check_env_class(run(BLOCKS[0])["Shop"], num_tasks=3)
    assert report.ok, report.lines()
