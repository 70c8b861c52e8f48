"""Each attack gets through where nothing contains it, and nowhere else."""

from collections.abc import Iterator

import pytest

from agentrl.sandboxes import SandboxOptions, SandboxPools
from agentrl.testing.sandbox_arena import Arena
from agentrl.testing.sandbox_attacks import ATTACKS, Attack

pytestmark = pytest.mark.sandbox
each_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena() as made:
        yield made


@each_attack
async def test_the_attack_works_uncontained(attack: Attack, arena: Arena) -> None:
    assert await attack.works_uncontained(arena)


@each_attack
async def test_the_attack_is_contained(
    attack: Attack, arena: Arena, options: SandboxOptions, pools: SandboxPools
) -> None:
    async with pools.acquire(attack.options(options)) as sandbox:
        assert attack.needs in sandbox.capabilities
        assert not await attack.gets_through(sandbox, arena)
        assert (await sandbox.exec(["true"])).ok
