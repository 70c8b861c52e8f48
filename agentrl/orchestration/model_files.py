"""What a model's folder says of a run that trains it, while no weight is loaded."""

from pathlib import Path

from agentrl.engine.local.models.check import check_files
from agentrl.engine.local.outline import check_outline
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.sampling import checked_codec, context_length, make_limits
from agentrl.trainer.model import refuse_dropout


def check_trained(plan: Plan, folder: Path) -> None:
    """Raise ConfigError for files that are not whole, or not the model of this run."""
    checked_codec(plan, folder)
    longest = context_length(plan.config, folder, plan.objects)
    make_limits(plan.config, longest)
    outline = check_files(folder)
    refuse_dropout(outline)
    check_outline(outline, longest)
    lora = plan.config.trainer.lora
    if lora.rank:
        from agentrl.trainer.lora import adapter_config

        kind = engine_kind(plan.config, plan.objects)
        served = kind.loads_adapters and lora.publish == "adapter"
        adapter_config(folder, lora, served=served)
