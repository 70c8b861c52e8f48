"""`agentrl engine check`: can a running server be trained with?"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb, print_json
from agentrl.engine.sglang.check import EngineCheckRow


class EngineCheckOptions(JsonOption):
    """What to compare with."""

    model: str | None = Field(
        default=None, description="The model that is trained; by default the server's own folder."
    )


def _run_engine_check(options: EngineCheckOptions, arguments: Arguments) -> int:
    from agentrl.orchestration.engines import check_url

    url = arguments.positional[0].rstrip("/")
    rows = asyncio.run(check_url(url, options.model))
    if options.as_json:
        print_json({"url": url, "ok": all(r.ok for r in rows), "rows": [asdict(r) for r in rows]})
    else:
        print(render(rows))
    return 0 if all(row.ok for row in rows) else 1


def render(rows: Sequence[EngineCheckRow]) -> str:
    """The table for people."""
    return "\n".join(f"{'ok  ' if row.ok else 'FAIL'}  {row.name:11}  {row.detail}" for row in rows)


COMMAND = Verb(
    name="engine check",
    summary="Ask a running SGLang server whether it can be trained with.",
    examples=[
        "agentrl engine check http://127.0.0.1:30000",
        "agentrl engine check http://127.0.0.1:30000 --model smollm2-135m --json",
    ],
    options=EngineCheckOptions,
    run=_run_engine_check,
    takes=["URL"],
)
