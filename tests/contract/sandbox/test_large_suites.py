"""A report of ten thousand tests comes whole out of a sandbox whose streams are cut at less."""

from typing import Final

import pytest

from agentrl.envs.swe.commands import TestCommand
from agentrl.envs.swe.grade import Grading, run_tests
from agentrl.sandboxes import SandboxOptions, SandboxPools

pytestmark = [pytest.mark.sandbox]
_NUM_TESTS: Final = 10_000
_RUN: Final = f"""
import json, runpy, sys
names = runpy.run_path(sys.argv[1])
request = json.loads(sys.stdin.buffer.readline())
write = names["open_report"](bytes.fromhex(request["key"]))
outcomes = names["Outcomes"](write)
for number in range({_NUM_TESTS}):
    test = f"tests/test_of_a_suite_as_large_as_some.py::TestOfAll::test_each[c{{number}}]"
    outcomes.add(test, "passed")
    print("what tests print " * 20)
    outcomes.close(test)
outcomes.finish(0)
"""
"""The runner's own channel, without the time that pytest takes for as many tests."""


async def test_a_report_of_ten_thousand_tests_comes_whole(
    options: SandboxOptions, pools: SandboxPools
) -> None:
    async with pools.acquire(options) as sandbox:
        grading = Grading(
            root=sandbox.workspace, fail_to_pass=(), pass_to_pass=(), arguments=(),
            command=TestCommand(argv=("python3", "-c", _RUN)),
        )  # fmt: skip
        report = await run_tests(sandbox, grading, "")
    assert len(report.passed()) == _NUM_TESTS
