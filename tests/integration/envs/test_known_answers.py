"""Calls with side effects whose answer is known are not made, in a process of their own too."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import ToolEnv
from agentrl.errors import ToolError
from agentrl.tools import tool
from agentrl.types import AssistantTurn, EpisodeStop, Score, Task, ToolCall


class Shop(ToolEnv):
    """Pays into a file."""

    @classmethod
    def make_task(cls, rng: Any, split: str) -> Task:
        return Task(prompt="Buy.")

    @tool(side_effects=True)
    def pay(self, cents: int) -> str:
        """Pay.

        Args:
            cents: how much; the fifth ends the episode, the ninth is refused.
        """
        with Path(self.task.data["file"]).open("a") as file:
            file.write(f"{cents} ")
        self.reward(cents / 10, "paid")
        if cents == 9:
            raise ToolError("no more")
        if cents == 5:
            self.finish({"paid": [1, 2]})
        return f"{cents} are paid"

    def score(self, answer: object) -> Score:
        return Score(value=float(answer == {"paid": [1, 2]}))


class Apart(Shop):
    isolation = "process"


@pytest.mark.parametrize("env_class", [Shop, Apart])
async def test_a_known_answer_does_what_the_call_did(env_class: type[Shop], tmp_path: Path) -> None:
    task = Task(prompt="Buy.", data={"file": str(tmp_path / "paid")})
    turns = [
        AssistantTurn(calls=(ToolCall(name="pay", arguments={"cents": cents}, id="call_0"),))
        for cents in (3, 9, 5)
    ]
    first, again = env_class(), env_class()
    await first.areset(seed=1, options={"task": task})
    made = [await first.advance(turn) for turn in turns]
    assert (tmp_path / "paid").read_text() == "3 9 5 "
    assert made[1].call_errors == ("tool_error",)
    assert made[2].stop is EpisodeStop.FINISHED
    await again.areset(seed=1, options={"task": task})
    known = [{call: a for call, a in turn.answers.items() if a is not None} for turn in made]
    assert all(known)
    repeated = [
        await again.advance(turn, of_turn) for turn, of_turn in zip(turns, known, strict=True)
    ]
    assert repeated == made
    assert again.conversation == first.conversation
    assert await again.ascore() == await first.ascore() == Score(value=1.0)
    assert (tmp_path / "paid").read_text() == "3 9 5 "
    await first.aclose()
    await again.aclose()
