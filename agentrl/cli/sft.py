"""`agentrl sft`: supervised training on an environment's scripted demonstrations."""

import sys

from agentrl.cli.command import Arguments, Command, JsonOption
from agentrl.cli.display import make_display
from agentrl.cli.run_config import FILE, load, show_result, title
from agentrl.orchestration.config import SHORT_NAMES, RunConfig


def _run(options: JsonOption, arguments: Arguments) -> int:
    from agentrl.orchestration import jobs

    loaded = load(arguments)
    stream = sys.stderr if options.as_json else sys.stdout
    display = make_display(title(loaded.config), loaded.config.warm_start.updates, stream)
    try:
        result = jobs.sft(loaded, display=display)
    finally:
        display.close()
    show_result(result, as_json=options.as_json)
    return 0


COMMAND = Command(
    name="sft",
    summary="Train a model on an environment's scripted demonstrations.",
    examples=[
        "agentrl sft --env calculator",
        "agentrl sft --env calculator --warm-start.updates 100 --name warm",
    ],
    options=JsonOption,
    run=_run,
    takes=[FILE],
    config=RunConfig,
    short=SHORT_NAMES,
)
