"""Prompts that are no text or leave no room for a turn, found before anything is loaded."""

from collections.abc import Sequence
from pathlib import Path

from agentrl.engine.local.models.resolve import TINY, resolve_tokenizer
from agentrl.errors import ConfigError
from agentrl.orchestration.env_mix import BoundEnv
from agentrl.orchestration.preflight import Plan, used_splits
from agentrl.orchestration.sampling import checked_codec, context_length, make_limits
from agentrl.rollout import Codec, LongPrompt, find_long
from agentrl.rollout.prompts import OddPrompt, odd_prompt
from agentrl.types import Task

_TRIED = 4
"""Of tasks that are made one by one so many are looked at."""


def is_at_hand(plan: Plan) -> bool:
    """True if the model's tokenizer needs not be fetched."""
    return plan.config.model == TINY or Path(plan.config.model).expanduser().is_dir()


def long_prompts(plan: Plan, *, train: bool = True) -> list[str]:
    """A line for each environment, split and reason with prompts that will be left out.

    Raises:
        ConfigError: all of them would be; or the chat template cannot be used.
    """
    config = plan.config
    folder = resolve_tokenizer(config.model, seed=config.seed)
    codec = checked_codec(plan, folder)
    limit = make_limits(config, context_length(config, folder, plan.objects)).prompt_tokens
    lines: list[str] = []
    for env in plan.envs:
        for split in used_splits(config, train):
            lines += _long_in(env, split, codec, limit, config.seed)
    return lines


def _long_in(env: BoundEnv, split: str, codec: Codec, limit: int, seed: int) -> list[str]:
    listed = env.env_class.listed_tasks(split, env.config)
    tasks = [env.task(i, split, seed) for i in range(_TRIED)] if listed is None else listed
    odd, sound = _sift(env, tasks)
    long, sure = find_long(env.prototype, env.name, sound, codec, limit) if sound else ([], True)
    if len(odd) + len(long) == len(tasks):
        which = f"the first {len(tasks)} tasks" if listed is None else f"all {len(tasks)} tasks"
        said = f"too long a prompt: {_shortest(long)}" if long else f"no text as prompt: {odd[0]}"
        raise ConfigError(f"{which} of split {split} have {said}")
    if listed is None:
        return []
    kinds: list[tuple[str, Sequence[OddPrompt | LongPrompt]]]
    kinds = [("", odd), ("" if sure else "at least ", long)]
    return [
        f"{least}{len(left)} of {len(tasks)} tasks of split {split} will be left out: {left[0]}"
        for least, left in kinds
        if left
    ]


def _sift(env: BoundEnv, tasks: Sequence[Task]) -> tuple[list[OddPrompt], list[Task]]:
    """Those whose prompt is no text, and the others."""
    odd = [odd_prompt(env.prototype, env.name, task) for task in tasks]
    sound = [task for task, found in zip(tasks, odd, strict=True) if found is None]
    return [found for found in odd if found is not None], sound


def _shortest(long: list[LongPrompt]) -> LongPrompt:
    return min(long, key=lambda prompt: prompt.tokens)
