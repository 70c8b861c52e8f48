"""`agentrl eval`: how good a model is, without training it."""

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.cli.run_config import FILE, load
from agentrl.orchestration.config import SHORT_NAMES, RunConfig
from agentrl.orchestration.evaluate import EvalResult

NO_SUCCESS = (
    "pass@k   not defined: scores are other than 0 and 1, and neither the environment nor its "
    "verifier has success_at"
)


class EvalOptions(JsonOption):
    """What plays."""

    agent: str = Field(
        default="",
        description="A scripted agent in the model's place: oracle, null, random, echo, one of the "
        "environment's own, pkg.mod:Name or path/file.py:Name.",
    )


def _run_eval(options: EvalOptions, arguments: Arguments) -> int:
    from agentrl.orchestration import jobs

    result, _ = jobs.evaluate(load(arguments).config, agent=options.agent)
    options.show(result.to_json(), render(result))
    return 0


def render(result: EvalResult) -> str:
    """The result for people."""
    lines = [f"{result.tasks} {result.split} tasks, {result.episodes} episodes"]
    if not result.pass_at:
        lines.append(NO_SUCCESS)
    for k, found in result.pass_at.items():
        lines.append(f"pass@{k:<4} {found.value:6.1%}  (95 %: {found.low:.1%} to {found.high:.1%})")
    lines.append(f"reward   {result.reward:6.3f}")
    lines.append(f"turns    {result.turns:6.2f}")
    if result.invalid:
        lines.append(f"invalid  {result.invalid:6}  episodes without a score, left out above")
    if result.too_long:
        lines.append(
            f"too long {result.too_long:6}  tasks whose prompt leaves no room, left out too"
        )
    if result.no_text:
        lines.append(f"no text  {result.no_text:6}  tasks whose prompt is no text, left out too")
    return "\n".join(lines)


COMMAND = Verb(
    summary="Play held-out tasks with a model; no trainer is loaded.",
    examples=[
        "agentrl eval --env calculator --model runs/last/model",
        "agentrl eval --env calculator --eval.tasks 512 --eval.samples 4 --json",
        "agentrl eval --env swe_sandbox --agent oracle",
    ],
    options=EvalOptions,
    run=_run_eval,
    takes=[FILE],
    config=RunConfig,
    short=SHORT_NAMES,
)
