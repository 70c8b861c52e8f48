"""`agentrl reward train`: a reward model from preference pairs."""

import sys
from collections.abc import Mapping, Set
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field

from agentrl.boundary import short_path
from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.cli.display import make_display
from agentrl.config import load_config
from agentrl.config.draft import Value
from agentrl.engine.local.models.resolve import TINY, check_model
from agentrl.extras import TRAIN, require
from agentrl.orchestration.config import RewardTrainingConfig
from agentrl.orchestration.load import base_name
from agentrl.orchestration.preferences import read_preferences

if TYPE_CHECKING:
    from agentrl.orchestration.reward_training import RewardResult

_TINY_PRESET: Final[Mapping[str, object]] = {"lr": 1e-3, "passes": 3, "threads": 1}


class RewardOptions(JsonOption):
    """The options of `reward train` that are no part of its configuration."""

    out: Path = Field(default=Path("reward-model"), description="The new folder of the model.")
    dry_run: bool = Field(default=False, description="Check pairs and model, train nothing.")


def _run_reward_train(options: RewardOptions, arguments: Arguments) -> int:
    require("training a reward model", *TRAIN)
    config = load_config(RewardTrainingConfig, flags=arguments.flags, preset=_choose_preset).config
    pairs = read_preferences(Path(arguments.positional[0]))
    check_model(config.model)
    from agentrl.orchestration.reward_training import plan_reward_training, train_reward_model

    plan = plan_reward_training(config, pairs, options.out)
    if options.dry_run:
        counts = f"{len(plan.train)} pairs in {plan.steps} steps"
        verdict = f"everything is in order: {counts}, {len(plan.heldout)} pairs held out"
        options.show(plan.to_json(), verdict)
        return 0
    stream = sys.stderr if options.as_json else sys.stdout
    with closing(make_display(f"reward model {options.out.name}", plan.steps, stream)) as display:
        result = train_reward_model(plan, display)
    options.show(result.to_json(), render(result))
    return 0


def render(result: "RewardResult") -> str:
    """The result for people."""
    plan, found = result.plan, result.heldout
    lines = [
        f"held out     {found.pairs} pairs of prompts that were not trained on",
        f"accuracy     {found.accuracy:6.1%}  chosen scored above rejected",
        f"calibration  {found.error:6.3f}  expected error of the confidence, by bins:",
    ]
    lines += [
        f"  {b.low:.0%} to {b.high:.0%} sure: {b.confidence:5.1%} sure, right in {b.accuracy:6.1%}"
        f" of {b.pairs}"
        for b in found.bins
    ]
    out = short_path(str(plan.out))
    return "\n".join([*lines, f"model        {out}  (--verifier reward_model:{out})"])


def _choose_preset(
    given: Mapping[str, Value],
) -> list[tuple[Mapping[str, object], str, Set[str]]]:
    model = str(given["model"].value) if "model" in given else TINY
    return [(_TINY_PRESET, "tiny preset", set())] if base_name(model) == TINY else []


COMMAND = Verb(
    summary="Train a reward model on preference pairs: lines {prompt, chosen, rejected}.",
    examples=[
        "agentrl reward train pairs.jsonl",
        "agentrl reward train pairs.jsonl --model runs/warm/model --passes 2 --out judge",
        "agentrl reward train pairs.jsonl --dry-run",
    ],
    options=RewardOptions,
    run=_run_reward_train,
    takes=["PAIRS"],
    config=RewardTrainingConfig,
)
