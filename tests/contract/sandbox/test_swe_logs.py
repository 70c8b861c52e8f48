"""Decoys guard suites that are judged by their log too, and a log that is forged earns nothing."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services, swe_sandbox
from agentrl.envs.swe.grade import Grading
from agentrl.envs.swe.repair import Repair
from agentrl.envs.swe.survey import plain_grading
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import Sandbox, SandboxOptions
from agentrl.types import Agent, Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.cheated_suites import SUITES, write_instances
from tests.contract.sandbox.forged_passes import wrapped
from tests.contract.sandbox.naive.rule import Suite
from tests.contract.sandbox.swe_cheats import HONEST

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(180)]

RUNTESTS: Final = """#!/usr/bin/env python3
import os, sys, unittest
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, here + "/../src"]
modules = [argument for argument in sys.argv[3:] if not argument.startswith("-")]
unittest.main(None, argv=["runtests.py", "-v", *modules])
"""
_FORGED: Final = """
import ast, os, sys
def _forge(how):
    lines = [""]
    for file in ("test_prices", "test_words"):
        tree = ast.parse(open(f"tests/{file}.py").read())
        for outer in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))]:
            for test in [n.name for n in outer.body if getattr(n, "name", "").startswith("test_")]:
                path = [outer.name] if outer is not tree else []
                ids = [f"[c{i}]" for i in range(3)] if test == "test_percent" else [""]
                named = ["[0-1111111110]", "[50-555555555]", "[80-222222222]"]
                for name in ([*named, *ids] if len(ids) > 1 else ids):
                    if how == "pytest":
                        path[:0] = [f"tests/{file}.py"]
                        lines.append("PASSED " + "::".join([*path, test + name]))
                        del path[0]
                    else:
                        lines.append(f"{test} ({'.'.join([file, *path])}) ... ok")
    for fd in range(1, 20):  # one of them is what pytest keeps of the real output
        try: os.write(fd, "\\n".join([*lines, ""]).encode())
        except OSError: pass
    os._exit(0)
"""


def _django(suite: Suite) -> Suite:
    def called(tests: "tuple[str, ...]") -> tuple[str, ...]:
        parts = (test.removeprefix("tests/").replace(".py", "").split("::") for test in tests)
        return tuple(
            f"{name} ({'.'.join(path)})" for *path, name in parts if path[-1] != "test_words"
        )

    passing = tuple(test for test in suite.pass_to_pass if "test_words" not in test)
    return replace(
        suite,
        files={**suite.files, "tests/runtests.py": RUNTESTS},
        fail_to_pass=called((*suite.fail_to_pass,)),
        pass_to_pass=called(passing),
    )


def _by_tail(suite: Suite) -> Suite:
    fail, passing = (
        tuple(test.partition("::")[2].replace("::", ".") for test in tests)
        for tests in (suite.fail_to_pass, suite.pass_to_pass)
    )
    return replace(suite, fail_to_pass=fail, pass_to_pass=passing)


LOGGED: Final[Mapping[str, Suite]] = {
    "django/django": _django(SUITES["cases"]),
    "sympy/sympy": _by_tail(SUITES["functions"]),
}
CHEATS: Final = {
    "prints a log as it is wanted and ends": shop.source("", _FORGED + "_forge(HOW)"),
    "prints such a log when it is called": shop.source(
        "", _FORGED + "def total(*_, **__): _forge(HOW)"
    ),
    "replaces what asserts equality": shop.source(
        "", "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
    ),
    "equals all": shop.source(
        "",
        "class _Any(int):\n    def __eq__(self, other): return True\n"
        "_total = total\ndef total(prices, discount=0, **kwargs):\n"
        "    return _Any() if 0 < discount <= 100 else _total(prices, discount, **kwargs)\n",
    ),
    "replaces the run of a test": wrapped(
        "_pytest.python:Function", "runtest", "        return None"
    ).script,
}  # fmt: skip


async def _plain(sandbox: Sandbox, repair: Repair) -> Grading:
    return plain_grading(sandbox, repair)


async def _score(config: SweSandbox.Config, agent: Agent) -> Score:
    (task,) = (task for tasks in SweSandbox.list_tasks(config).values() for task in tasks)
    env = SweSandbox(config)
    await env.areset(options={"task": task})
    outcome = await shop.play(env, agent)
    await env.aclose()
    assert isinstance(outcome, Score), outcome
    return outcome


@pytest.mark.parametrize("repo", LOGGED)
async def test_what_is_judged_by_its_log_is_guarded_too(
    repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.use_own_pytest(monkeypatch)
    tasks, repos = write_instances(tmp_path, LOGGED[repo], repo)
    options = SandboxOptions(backend="bwrap")
    config = SweSandbox.Config(tasks=str(tasks), repos=str(repos), sandbox=options)
    how = "unittest" if repo == "django/django" else "pytest"
    scripts = {name: script.replace("HOW", repr(how)) for name, script in CHEATS.items()}
    of_other = "replaces the run of a test", "replaces what asserts equality"
    del scripts[of_other[how == "pytest"]]
    honest = await _score(config, shop.BashAgent(HONEST))
    assert (honest.value, honest.parts["unguarded"]) == (1, 0), honest.reason
    agents = {name: shop.BashAgent(script) for name, script in scripts.items()}
    lost = await asyncio.gather(*(_score(config, agent) for agent in agents.values()))
    monkeypatch.setattr(swe_sandbox, "guarded_grading", _plain)  # one run, as it is
    won = await asyncio.gather(*(_score(config, agent) for agent in agents.values()))
    await default_services().sandboxes.close()
    assert [score.value for score in won] == [1] * len(won), won
    assert [score.value for score in lost] == [0] * len(lost), lost
    assert sum(score.parts["cheats_caught"] for score in lost) >= 2, lost
