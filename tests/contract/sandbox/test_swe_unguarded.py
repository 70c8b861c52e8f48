"""What cannot show that a program is right guards nothing, and the score says so."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import SandboxOptions
from agentrl.types import Score
from tests.contract.sandbox import cheated_suites, shop
from tests.contract.sandbox.cheated_suites import SUITES, write_instances

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(120)]

_FILE: Final = "tests/test_prices.py"
_OLD: Final = """from shop.prices import total
def test_half():
    assert total([123456789, 987654321], off=50) == 555555555
def test_part():
    assert total([123456789, 987654321], off=80) == 222222222
"""
_TESTS: Final = {
    "they pass with the bug": """from shop.prices import total
def test_half():
    assert [total([10 ** 9, 5]), total([10 ** 12, 7])] == [1000000005, 1000000000007]
def test_part():
    assert [total([10 ** 8, 5]), total([10 ** 11, 7])] == [100000005, 100000000007]
""",
    "the bug's value is the only other one": """from shop.prices import total
def test_half():
    assert (total([10 ** 9, 5], 50) < 10 ** 9) is True
def test_part():
    assert (total([10 ** 9, 5], 80) > 10 ** 9) is False
""",
    "the old tests say it": _OLD.replace("off=", "discount="),
    "something else fails": """from shop.prices import total
def test_half():
    assert total([123456789, 987654321], 50) in (555555555, 1)
    assert str(total([123456789])) + " in all" == "123456789 in all"
def test_part():
    assert total([123456789, 987654321], 80) < 300000000
    assert str(total([987654321])) + " in all" == "987654321 in all"
""",
}


@pytest.mark.parametrize("why", _TESTS)
async def test_it_guards_nothing(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.use_own_pytest(monkeypatch)
    monkeypatch.setattr(cheated_suites, "_NO_TESTS", _OLD)
    names = tuple(f"{_FILE}::{name}" for name in ("test_half", "test_part"))
    suite = replace(
        SUITES["functions"], tests={_FILE: _TESTS[why]}, pass_to_pass=(), fail_to_pass=names
    )
    tasks, repos = write_instances(tmp_path, suite)
    options = SandboxOptions(backend="bwrap")
    config = SweSandbox.Config(tasks=str(tasks), repos=str(repos), sandbox=options)
    ((task,),) = (tasks for tasks in SweSandbox.list_tasks(config).values() if tasks)
    env = SweSandbox(config)
    await env.areset(options={"task": task})
    repaired = shop.BashAgent(shop.put("src/shop/prices.py", shop.PRICES))
    outcome = await shop.play(env, repaired)
    await env.aclose()
    await default_services().sandboxes.close()
    assert isinstance(outcome, Score), outcome
    assert (outcome.value, outcome.parts["unguarded"]) == (1, 1), outcome.reason
