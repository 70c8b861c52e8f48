import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs import ToolEnv
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.fingerprints import compare_fingerprints, take_fingerprints
from agentrl.orchestration.layers import Layer, write_layer
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.preflight import make_plan
from agentrl.run_dir import RunDirectory
from agentrl.types import Task


def digest_of(tasks: Sequence[Task]) -> str:
    found = prints_of(type("Given", (Scored,), {"tasks": tasks}))
    return found["env Given: split train"]


def prints_of(env: type[ToolEnv]) -> Mapping[str, str]:
    objects = Overrides(given={env.__name__: env})
    loaded = load_run_config(flags=["--env", env.__name__], objects=objects)
    return take_fingerprints(make_plan(loaded.config, objects)).data


class Scored(ToolEnv):
    def score(self, answer: Any) -> float:
        return 0.0


TASKS = st.lists(
    st.builds(
        Task,
        prompt=st.text("ab", min_size=1, max_size=2),
        answer=st.none() | st.integers(0, 2) | st.tuples(st.floats(0, 1)),
        data=st.dictionaries(st.sampled_from("xy"), st.integers(0, 1)),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(TASKS, TASKS)
def test_lists_have_one_fingerprint_if_they_are_equal(
    left: Sequence[Task], right: Sequence[Task]
) -> None:
    assert digest_of(left) == digest_of(list(left))
    assert (digest_of(left) == digest_of(right)) == (list(left) == list(right))


class Opaque:
    pass


def test_an_address_is_no_content() -> None:
    first, second = ([Task(prompt="p", id="i", data={"x": Opaque()})] for _ in range(2))
    assert digest_of(first) == digest_of(second)


def test_a_file_stands_for_what_is_in_it(tmp_path: Path) -> None:
    def of(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return digest_of([Task(prompt="p", id="i", data={"words": str(tmp_path / name)})])

    assert of("a", "x") == of("b", "x")
    assert of("a", "x") != of("a", "longer")


def test_a_generator_is_known_by_its_first_tasks() -> None:
    class Counting(Scored):
        first = 0

        @classmethod
        def make_task(cls, rng: np.random.Generator, split: str) -> Task:
            return Task(prompt=f"{split} {cls.first + int(rng.integers(1000))}")

    before = prints_of(Counting)
    assert before == prints_of(Counting)
    Counting.first = 1
    assert before != prints_of(Counting)


@pytest.mark.parametrize("broken", [b"", b"{}", b"[]"])
def test_the_newest_readable_checkpoint_is_compared(tmp_path: Path, broken: bytes) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    loaded = load_run_config(flags=["--env", "calculator"])
    now = take_fingerprints(make_plan(loaded.config, Overrides()))
    assert compare_fingerprints(directory, now).data == ()
    [name] = now.data
    for step, digest in ((2, "old"), (10, now.data[name])):
        folder = directory.checkpoints / f"step-{step:06}"
        folder.mkdir(parents=True)
        state = {"step": step, "data": {name: digest}, "sources": {}}
        (folder / "state.json").write_text(json.dumps({"state": state}))
    assert compare_fingerprints(directory, now).data == ()
    (directory.checkpoints / "step-000010" / "state.json").write_bytes(broken)
    found = compare_fingerprints(directory, now)
    assert (found.data, found.step) == ((name,), 2)
    for layer in (
        Layer(step=0, values={}, origins={}),
        Layer(step=2, values={}, origins={}, accepted=[name], data=now.data),
    ):
        write_layer(directory, loaded, layer)
    assert compare_fingerprints(directory, now).data == ()
