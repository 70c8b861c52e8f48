"""What every backend does."""

import pytest

from agentrl.sandboxes import SandboxOptions, SandboxPools, make_sandbox
from agentrl.testing.sandbox_arena import attack_options
from agentrl.testing.sandbox_checks import CHECKS, Check

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@pytest.mark.sandbox
@each_check
async def test_check(check: Check, options: SandboxOptions, pools: SandboxPools) -> None:
    async with pools.acquire(options) as sandbox:
        await check(sandbox)


@pytest.mark.sandbox
@each_check
async def test_check_without_containment(check: Check) -> None:
    async with make_sandbox(attack_options("unsafe-local")) as sandbox:
        await check(sandbox)
