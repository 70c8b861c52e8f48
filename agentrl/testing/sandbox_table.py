"""The table of docs/sandboxes.md: every attack against every backend, run now.

python -m agentrl.testing.sandbox_table docs/sandboxes.md
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agentrl.sandboxes import SandboxPools
from agentrl.testing.sandbox_arena import Arena, attack_options
from agentrl.testing.sandbox_attacks import ATTACKS, Attack

BACKENDS: Final = ("bwrap", "docker")
BEGIN, END = "<!-- attacks: begin -->\n", "<!-- attacks: end -->\n"


async def run_table(backends: Sequence[str] = BACKENDS) -> str:
    """Run all attacks; the table as Markdown."""
    lines = [
        f"| attack | what it tries | nothing | {' | '.join(backends)} |",
        f"|---|---|---|{'---|' * len(backends)}",
    ]
    pools = SandboxPools()
    try:
        with Arena() as arena:
            for attack in ATTACKS:
                cells = [await _try_attack(attack, arena, pools, backend) for backend in backends]
                works = "gets through" if await attack.works_uncontained(arena) else "FAILS"
                lines.append(f"| {attack.name} | {attack.what} | {works} | {' | '.join(cells)} |")
    finally:
        await pools.close()
    return "\n".join(lines) + "\n"


async def _try_attack(attack: Attack, arena: Arena, pools: SandboxPools, backend: str) -> str:
    async with pools.acquire(attack.options(attack_options(backend))) as sandbox:
        if attack.needs not in sandbox.capabilities:
            return f"n/a: no {attack.needs} here"
        return "GETS THROUGH" if await attack.gets_through(sandbox, arena) else "contained"


def put(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table}{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(put(path.read_text(), asyncio.run(run_table())))
