"""`agentrl export`: a run's model as a Hugging Face folder."""

from pathlib import Path

from pydantic import Field

from agentrl.cli.command import Arguments, Verb
from agentrl.config import Config
from agentrl.orchestration.config import RunConfig


class ExportOptions(Config):
    """The options of `export`."""

    adapter: bool = Field(
        default=False, description="Leave LoRA adapters unmerged, as PEFT loads them."
    )
    runs_dir: str = Field(
        default=str(RunConfig.model_fields["runs_dir"].default),
        description="Folder that holds the runs.",
    )


def _run_export(options: ExportOptions, arguments: Arguments) -> int:
    from agentrl.orchestration.export import export_run

    source, out = arguments.positional
    print(export_run(source, Path(out), adapter=options.adapter, runs_dir=Path(options.runs_dir)))
    return 0


COMMAND = Verb(
    summary="Write a run's model, or that of a checkpoint, as a Hugging Face folder.",
    examples=["agentrl export last my-model", "agentrl export last my-adapter --adapter"],
    options=ExportOptions,
    run=_run_export,
    takes=["RUN|CHECKPOINT", "OUT"],
)
