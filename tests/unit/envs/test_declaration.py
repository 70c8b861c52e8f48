from pathlib import Path
from typing import Any

import pytest

from agentrl.config import Config as BaseConfig
from agentrl.envs import BUILT_IN, ToolEnv, resolve_env
from agentrl.envs.calculator import Calculator
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.tools import tool
from agentrl.types import Message, Task
from agentrl.verifiers import ExactMatch, ExactNumber


class Good(ToolEnv):
    tasks = ({"prompt": "p", "answer": "1"},)
    verifier = ExactNumber()


def variant(**attributes: Any) -> type[ToolEnv]:
    return type("Bad", (Good,), attributes)


def make_task(cls: type, rng: Any, split: str) -> Task:
    return Task(prompt="p")


def make_nothing(cls: type) -> Task:
    return Task(prompt="p")


def make_none(cls: type, rng: Any, split: str) -> None:
    return None


def own_score(self: ToolEnv, answer: Any) -> float:
    return 1.0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_turns": -1}, "Bad.max_turns is -1, expected a number above 0"),
    ({"tool_timeout_s": 0}, "Bad.tool_timeout_s is 0"),
    ({"max_tool_tokens": "9"}, "Bad.max_tool_tokens is '9'"),
    ({"system": 5}, "Bad.system is 5, expected text"),
    ({"isolation": "docker"}, "Bad.isolation is 'docker', expected 'none' or 'process'"),
    ({"make_task": classmethod(make_task)}, "Bad has both tasks and make_task"),
    ({"tasks": None}, "Bad has no tasks"),
    ({"tasks": None, "make_task": make_task}, "put @classmethod on it"),
    ({"tasks": None, "make_task": classmethod(make_nothing)}, "make_task takes 0 arguments"),
    ({"tasks": []}, "no tasks in the split train"),
    ({"tasks": [{"promt": "a"}]}, "task 0 of train has the unknown key promt"),
    ({"tasks": [{"answer": "a"}]}, "task 0 of train has no prompt"),
    ({"tasks": [{"prompt": 1}]}, "task 0 of train has a prompt that is neither text nor"),
    ({"tasks": [7]}, "task 0 of train is a int"),
    ({"tasks": [{"prompt": "a", "data": [1]}]}, "task 0 of train has data of type list"),
    ({"tasks": "missing.jsonl"}, "missing.jsonl cannot be read"),
    ({"verifier": None}, "Bad has no scoring"),
    ({"score": own_score}, "Bad has both verifier and score"),
    ({"verifier": "exact_numbr"}, "verifier exact_numbr is unknown"),
    ({"tools": (len,)}, "Bad.tools holds .* which is no @tool"),
]


@pytest.mark.parametrize(("attributes", "message"), WRONG)
def test_wrong_declarations_are_one_sentence(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        variant(**attributes)()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["{'prompt': 1}", "[1", "\ufeff", "nan;"])
def test_a_line_that_is_no_json_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}\n\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"tasks\.jsonl, line 3 is no JSON"):
        variant(tasks=path)()


def test_tasks_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        '{"prompt": "a\u2028b", "answer": 1, "data": {"x": 2}, "id": 7}\n'
        '{"prompt": [{"role": "user", "content": "c"}]}\n'
    )
    env_class = variant(tasks=str(path))
    assert env_class.num_tasks("train") == 2
    found = {env_class.task_at(i, split="train", seed=0).id: i for i in range(2)}
    first = env_class.task_at(found["7"], split="train", seed=0)
    assert first == Task(prompt="a\u2028b", answer=1, data={"x": 2}, id="7")
    second = env_class.task_at(1 - found["7"], split="train", seed=0)
    assert second.messages() == (Message(role="user", content="c"),)


def test_a_make_task_without_a_task_is_a_fault() -> None:
    env_class = variant(tasks=None, make_task=classmethod(make_none))
    with pytest.raises(EnvironmentFault, match="make_task returned a NoneType, expected a Task"):
        env_class.task_at(0, split="train", seed=0)


def test_a_passed_verifier_takes_the_place_of_the_own_one() -> None:
    for env in (Good(verifier=ExactMatch()), variant(verifier=None)(verifier="exact_match")):
        env.reset(seed=0)
        assert env.step("1")[1] == 1.0
        env.close()


def test_a_config_of_another_class_is_refused() -> None:
    class Other(BaseConfig):
        pass

    with pytest.raises(ConfigError, match=r"Calculator got a config of type .*Other"):
        Calculator(Other())


def test_functions_can_be_tools() -> None:
    @tool
    def double(x: int) -> int:
        """Double.

        Args:
            x: a number.
        """
        return 2 * x

    env = variant(tools=(double,))()
    assert [schema.name for schema in env.tool_schemas] == ["double"]


def test_environments_are_found_by_name_reference_and_class() -> None:
    assert resolve_env("calculator") is Calculator
    assert resolve_env(BUILT_IN["calculator"]) is Calculator
    assert resolve_env(Good) is Good


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("calculater", "did you mean calculator?"),
        ("agentrl.types:Task", "no subclass of ToolEnv"),
        ("agentrl.nothing:Task", "cannot be imported"),
        (variant(max_turns=0), "Bad.max_turns is 0"),
    ],
)
def test_what_is_no_environment_is_refused(ref: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_env(ref)
