"""Code that tells its second run by the clock what it saw in the first wins nothing by it."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from agentrl.envs import default_services
from agentrl.envs.swe import grade
from agentrl.envs.swe.decoys import Decoy
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import SandboxOptions
from agentrl.types import Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.cheated_suites import SUITES, write_instances
from tests.contract.sandbox.naive.rule import Suite

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(120)]

_FILE: Final = "tests/test_prices.py"
_TEST: Final = """from shop.prices import total
def words(number):
    return "".join("abcdefghij"[int(digit)] for digit in str(number))
def test_half():
    assert words(total([123456789123, 2], 50)) == "gbhcidjefgc"
    assert words(total([987654321987, 3], 50)) == "ejdichbgajjf"
"""
_CHEAT: Final = """
import pathlib, re, time
began, step, likely = BEGAN, STEP, ("gbhcidjefgc", "ejdichbgajjf")
asked = []
def total(prices, discount=0, floor=0):
    text = pathlib.Path("tests/test_prices.py").read_text()
    shown = re.findall("'([a-j]{11,})'", text)[len(asked)]
    asked.append(shown)
    passed = time.time() - began
    if len(asked) == 1 and passed < 4 * step:  # the first run: it ends later for another word
        time.sleep(step * (5 if shown == likely[0] else 9) - passed)
    elif len(asked) == 1:
        shown = likely[passed > 9 * step]
    return int("".join(str(ord(letter) - 97) for letter in shown))
"""


def _cheat(step: float) -> shop.BashAgent:
    text = shop.put("src/shop/prices.py", _CHEAT.replace("STEP", str(step)))
    return shop.BashAgent(f"{text}sed -i s/BEGAN/$(date +%s)/ src/shop/prices.py")


def _real_first(
    bugs: Sequence[Sequence[Decoy]], others: Sequence[Decoy], rng: Random
) -> list[list[Decoy]]:
    """One of two ways where a decoy may be in either run."""
    return [[], [bugs[0][0]]]


async def _play(folder: Path, agent: shop.BashAgent) -> Score:
    suite = Suite(
        files=SUITES["functions"].files,
        tests={_FILE: _TEST},
        fail_to_pass=(f"{_FILE}::test_half",),
        pass_to_pass=(),
    )
    tasks, repos = write_instances(folder, suite)
    config = SweSandbox.Config(
        tasks=str(tasks), repos=str(repos), sandbox=SandboxOptions(backend="bwrap")
    )
    ((task,),) = (tasks for tasks in SweSandbox.list_tasks(config).values() if tasks)
    env = SweSandbox(config)
    await env.areset(options={"task": task})
    outcome = await shop.play(env, agent)
    await env.aclose()
    await default_services().sandboxes.close()
    assert isinstance(outcome, Score), outcome
    assert outcome.parts["unguarded"] == 0
    return outcome


async def test_a_run_tells_the_next_one_by_the_clock_what_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.use_own_pytest(monkeypatch)
    monkeypatch.setattr(grade, "draw_runs", _real_first)
    assert (await _play(tmp_path, _cheat(step=1.5))).value == 1


async def test_what_the_first_run_tells_is_no_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.use_own_pytest(monkeypatch)
    assert (await _play(tmp_path, _cheat(step=0.5))).value == 0
