"""A small package with a bug as a task of `swe_sandbox`, and agents that play it."""

import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from agentrl.envs import swe_sandbox
from agentrl.envs.swe.build import archive, bench
from agentrl.envs.swe.build.bench import set_up
from agentrl.envs.swe.build.decoying import deciding
from agentrl.envs.swe.build.guarding import find_decoys
from agentrl.envs.swe.build.operators import OPERATORS
from agentrl.envs.swe.build.records import Mutation, Package, RepairTask, write_records
from agentrl.envs.swe.build.source import PackageSource, position
from agentrl.envs.toolenv import ToolEnv
from agentrl.types import Agent, AssistantTurn, EpisodeView, Outcome, ToolCall

PRICES: Final = '''"""Prices."""


def total(prices, discount=0, *, floor=0):
    """The sum after a discount in percent."""
    if discount < 0 or discount > 100:
        raise ValueError("no such discount")
    result = sum(prices) * (100 - discount) // 100
    return max(result, floor)
'''
WRONG: Final = PRICES.replace("100 - discount", "100 + discount")
TESTS: Final = """import pytest
from shop.prices import total


def test_sum():
    assert total([1, 2, 3]) == 6


@pytest.mark.parametrize(("percent", "left"), [(0, 1111111110), (50, 555555555), (80, 222222222)])
def test_percent(percent, left):
    assert total([123456789, 987654321], percent) == left


def test_floor():
    assert total([1], floor=5) == 5


def test_refused():
    with pytest.raises(ValueError):
        total([], 101)
"""
FILES: Final = {
    "src/shop/__init__.py": "",
    "src/shop/prices.py": PRICES,
    "tests/test_prices.py": TESTS,
    "tests/test_words.py": "def test_nothing():\n    pass\n",
    "setup.cfg": "[metadata]\nname = shop\n",
}
FAILING: Final = ("test_percent[50-555555555]", "test_percent[80-222222222]")
REWRITTEN: Final = ("test_percent[c1]", "test_percent[c2]")
"""The same with ids that tell nothing."""
PASSING: Final = ("test_sum", "test_percent[0-1111111110]", "test_floor", "test_refused")


async def play(env: ToolEnv, agent: Agent) -> Outcome:
    stop = None
    while stop is None:
        stop = (await env.advance(agent.act(env.view()))).stop
    return await env.ascore()


def write(folder: Path, files: "dict[str, str]") -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def tasks_file(folder: Path, tests: str = TESTS) -> Path:
    """Write the records; the archive is in the cache then."""
    files = {**FILES, "tests/test_prices.py": tests}
    made = archive.fetch(str(write(folder / "shop", files)))
    archive.unpack(made)
    with ExitStack() as resources, TemporaryDirectory() as scratch:
        built = set_up(
            made, Path(scratch), resources=resources, requires=(),
            arguments=("tests/test_prices.py", "tests/test_words.py"),
        )  # fmt: skip
        decoys = find_decoys(built, [], random.Random(0))
        with built.changed({"src/shop/prices.py": WRONG}):
            report = built.runner.run(built.suite).report
        failing = [f"tests/test_prices.py::{name}" for name in REWRITTEN]
        saws = {test: report.saws.get(test) if report else None for test in failing}
        names = [test.partition("::") for test in built.tests]
        package = Package(
            package="shop", version="0", sha256=made.sha256, paths=("src", "."), seconds=0.1,
            arguments=built.suite.arguments, decoys=tuple(one.decoy for one in decoys),
            tests={file: tuple(n for f, _, n in names if f == file) for file, _, _ in names},
        )  # fmt: skip
    numbers = deciding(decoys, saws, frozenset(failing))
    task = RepairTask(
        task="shop-0-percent", package="shop", mutations=(_mutation(),), deciding=(numbers,),
        issue="A discount makes it dearer: `total([100, 200], 50)` gives 450.",
        fail_to_pass=tuple(failing), seconds=(0.1,) * 3,
    )  # fmt: skip
    file = folder / "tasks.jsonl"
    file.write_text(write_records([package], [task]))
    return file


def _mutation() -> Mutation:
    source = PackageSource(PRICES.encode())
    for node in source.nodes():
        for edit in OPERATORS["arithmetic"](source, node):
            if source.replaced(edit) == WRONG:
                return Mutation(
                    file="src/shop/prices.py", sha256=source.sha256, node=position(node),
                    operator="arithmetic", to=edit.to,
                )  # fmt: skip
    raise AssertionError("no operator makes the bug")


def use_own_pytest(patch: pytest.MonkeyPatch) -> None:
    """Take pytest from here instead of from the index."""

    def installed(requires: Sequence[str]) -> Path:
        return Path(pytest.__file__).parents[1]

    patch.setattr(swe_sandbox, "install_tools", installed)
    patch.setattr(bench, "install_tools", installed)


@dataclass(frozen=True)
class BashAgent:
    """Runs one script, then submits."""

    script: str

    def act(self, view: EpisodeView) -> AssistantTurn:
        if view.messages[-1].role != "tool":
            return call("bash", command=self.script)
        return call("submit")


def require(backend: str, missing: Callable[[str], str]) -> None:
    """Skip where a backend does not work, or fail where it is required."""
    if reason := missing(backend):
        if os.environ.get(f"REQUIRE_{backend.upper()}") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def call(name: str, **arguments: str) -> AssistantTurn:
    return AssistantTurn(calls=(ToolCall(name=name, arguments=dict(arguments), id="call_0"),))


def put(path: str, text: str) -> str:
    """A shell line that writes a file."""
    return f"mkdir -p $(dirname {path}) && cat >{path} <<'TEXT'\n{text}\nTEXT\n"


def source(before: str = "", after: str = "") -> str:
    """A shell line that puts code around the buggy source."""
    return put("src/shop/prices.py", f"{before}\n{WRONG}\n{after}")
