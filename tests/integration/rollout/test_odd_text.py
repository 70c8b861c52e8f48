"""Text that no UTF-8 holds: an invalid episode with a sentence, or a task that is left out."""

from pathlib import Path

import orjson
import pytest
from numpy.random import Generator

import agentrl
from agentrl.envs import ToolEnv
from agentrl.envs.tasks import read_tasks
from agentrl.errors import BreakerTripped, ConfigError, EnvironmentFault
from agentrl.orchestration.run import RunResult
from agentrl.run_dir.writing import EventsWriter, read_lines
from agentrl.types import AssistantTurn, Score, Task

ODD = "\ud800"


class Words(ToolEnv):
    tasks = (Task(prompt="a"), Task(prompt="b"))

    def score(self, answer: str) -> Score | float:
        return 0.5


class OddPart(Words):
    def score(self, answer: str) -> Score:
        return Score(value=0.5, parts={ODD: 1.0})


class OddReward(Words):
    def reply(self, text: str) -> None:
        self.reward(1.0, ODD)


class OddKey(Words):
    def state_key(self) -> str:
        return ODD


class OneOdd(Words):
    tasks = (Task(prompt="a"), Task(prompt=ODD, id="odd"))


class AllOdd(Words):
    tasks = (Task(prompt=ODD), Task(prompt=f"{ODD}b"))


class SomeMadeOdd(ToolEnv):
    @classmethod
    def make_task(cls, rng: Generator, split: str) -> Task:
        return Task(prompt=ODD if rng.integers(2) else "a")

    def score(self, answer: str) -> float:
        return 0.5


def _train(env: type[ToolEnv], folder: Path) -> RunResult:
    return agentrl.train(
        env,
        steps=2,
        tasks_per_step=2,
        group_size=2,
        threads=1,
        runs_dir=str(folder),
        rollout={"max_new_tokens": 4},
    )


def test_an_odd_name_of_a_part_makes_an_episode_invalid(tmp_path: Path) -> None:
    said = "the name of a score's part is '.ud800', which holds half of a surrogate pair"
    with pytest.raises(BreakerTripped, match=said):
        _train(OddPart, tmp_path)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (OddReward, "the name of a reward's part is '.ud800'"),
        (OddKey, "state_key's text holds half of a surrogate pair"),
    ],
)
async def test_odd_text_of_a_turn_is_the_environments_fault(env: type[ToolEnv], said: str) -> None:
    played = env()
    await played.areset(seed=0)
    with pytest.raises(EnvironmentFault, match=said):
        await played.advance(AssistantTurn(text="x"))
    await played.aclose()


@pytest.mark.parametrize("env", [OneOdd, SomeMadeOdd])
def test_an_odd_prompt_is_left_out_without_an_attempt(env: type[ToolEnv], tmp_path: Path) -> None:
    result = _train(env, tmp_path)
    lines = read_lines(result.path / "metrics.jsonl")
    assert {line["invalid"] for line in lines} == {0}
    left_out = [float(str(line.get("no_text", 0))) for line in lines]
    assert sum(left_out) > 0
    assert [line["episodes"] for line in lines] == [2 * (2 - n) for n in left_out]


def test_a_run_with_nothing_but_odd_prompts_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all 2 tasks of split train have no text as prompt"):
        _train(AllOdd, tmp_path)


@pytest.mark.parametrize("odd", ["NaN", "-Infinity", "1e999", "[NaN]"])
def test_a_number_that_json_lacks_is_refused_at_load(odd: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f'{{"prompt": "a", "answer": {odd}}}')
    with pytest.raises(ConfigError, match=r"line 1 is no JSON: .* is no number that JSON has"):
        read_tasks(file)


def test_an_odd_id_of_a_task_is_refused_at_load(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "a", "id": "\\ud800"}')
    with pytest.raises(ConfigError, match=r"line 1: a task's id is '.ud800'"):
        read_tasks(file)


def test_a_stream_takes_any_text(tmp_path: Path) -> None:
    with EventsWriter(tmp_path / "events.jsonl") as writer:
        writer.write("stopped", reason=ODD, tasks=[{ODD: (ODD, 1.5)}])
    line = orjson.loads((tmp_path / "events.jsonl").read_bytes())
    assert (line["reason"], line["tasks"]) == ("\\ud800", [{"\\ud800": ["\\ud800", 1.5]}])
