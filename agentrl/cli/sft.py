"""`agentrl sft`: supervised training on an environment's scripted demonstrations."""

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.cli.run_config import FILE, load, show_result, shown
from agentrl.orchestration.config import SHORT_NAMES, RunConfig


def _run_sft(options: JsonOption, arguments: Arguments) -> int:
    from agentrl.orchestration import jobs

    loaded = load(arguments)
    with shown(loaded.config, loaded.config.warm_start.updates, options) as display:
        result = jobs.sft(loaded, observers=[display])
    show_result(result, options)
    return 0


COMMAND = Verb(
    summary="Train a model on an environment's scripted demonstrations.",
    examples=[
        "agentrl sft --env calculator",
        "agentrl sft --env calculator --warm-start.updates 100 --name warm",
    ],
    options=JsonOption,
    run=_run_sft,
    takes=[FILE],
    config=RunConfig,
    short=SHORT_NAMES,
)
