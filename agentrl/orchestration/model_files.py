"""What a model's folder says of a run, while no weight is loaded: codec, budgets, prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from agentrl.engine.local.models.files import read_json
from agentrl.engine.local.models.resolve import TINY, resolve_tokenizer
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, BoundEnv, Overrides
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.preflight import Plan, used_splits
from agentrl.rollout import Codec, EpisodeLimits, LongPrompt, find_long
from agentrl.rollout.codec import OddPrompt, odd_prompt
from agentrl.tokens import Tokenizer, ToolFormat

_TRIED = 4
"""Of tasks that are made one by one so many are looked at."""


def checked_codec(plan: Plan, folder: Path) -> Codec:
    """The model's codec, its chat template tried with the tools of every environment.

    Raises:
        ConfigError: the template cannot be used, or the tokenizer is another model's.
    """
    config = plan.config
    tokenizer = Tokenizer.load(folder)
    size = _read_model_config_json(folder).get("vocab_size")
    if isinstance(size, int) and tokenizer.vocab_size > size:
        raise ConfigError(
            f"{folder}: its tokenizer.json has {tokenizer.vocab_size} ids, but the model "
            f"knows {size}: it is another model's; put the model's own files there"
        )
    if name := config.trainer.reference_model:
        # Each id has to be the same token to the model that policies are held to.
        known, own = Tokenizer.load(resolve_tokenizer(name, seed=config.seed)).ids, tokenizer.ids
        odd = min((text for text, _ in known.items() ^ own.items()), default=None)
        if odd is not None:
            raise ConfigError(
                f"trainer.reference: {name} has another vocabulary than {config.model} ({odd!r} is "
                f"{known.get(odd, 'no token')} there and {own.get(odd, 'no token')} here), so they "
                "cannot be compared token by token; give a model with the same tokenizer.json"
            )
    given = cast("type[ToolFormat] | None", plan.objects.get(config.tool_format))
    codec = Codec(
        tokenizer,
        tool_format=given or config.tool_format,
        reasoning=config.rollout.reasoning,
        tool_results=config.rollout.tool_results,
    )
    for env in plan.envs:
        codec.renderer(env.prototype.tool_schemas)
    return codec


def context_length(config: RunConfig, folder: Path, objects: Overrides = NO_OBJECTS) -> int:
    """Most tokens of an episode that model and engine allow, from the model's config."""
    longest, asked = _read_model_config_json(folder).get("max_position_embeddings"), config.engine
    own = longest if isinstance(longest, int) else asked.context_length or 2**20
    return min(asked.context_length or own, own) - engine_kind(config, objects).reserved_tokens


def _read_model_config_json(folder: Path) -> dict[str, object]:
    return cast("dict[str, object]", read_json(folder / "config.json"))


def make_limits(config: RunConfig, context_length: int) -> EpisodeLimits:
    """The budgets of an episode; with `deterministic` no clock ends one.

    Raises:
        ConfigError: the budget is larger than the context, or the context policy would act too
            late.
    """
    rollout = config.rollout
    asked = rollout.max_context_tokens or context_length
    if asked > context_length:
        raise ConfigError(
            f"rollout.max_context_tokens: got {asked}, expected at most {context_length}, "
            "the context length of model and engine"
        )
    if config.context.at is not None and config.context.at >= asked:
        raise ConfigError(
            f"context.at: got {config.context.at}, expected less than the context's {asked} tokens "
            "(rollout.max_context_tokens)"
        )
    return EpisodeLimits(
        max_new_tokens=rollout.max_new_tokens,
        max_context_tokens=asked,
        max_episode_tokens=rollout.max_episode_tokens,
        wall_s=None if config.deterministic else rollout.wall_s,
        setup_s=rollout.setup_s,
    )


def check_trained(plan: Plan, folder: Path) -> None:
    """Raise ConfigError for files that are not whole, or not the model of this run."""
    from agentrl.engine.local.demands import check_outline
    from agentrl.engine.local.models.check import check_files  # torch, only now
    from agentrl.trainer.lora import adapter_config
    from agentrl.trainer.model import refuse_dropout

    checked_codec(plan, folder)
    longest = context_length(plan.config, folder, plan.objects)
    make_limits(plan.config, longest)
    outline = check_files(folder)
    refuse_dropout(outline)
    check_outline(outline, longest)
    lora = plan.config.trainer.lora
    if lora.rank:
        kind = engine_kind(plan.config, plan.objects)
        served = kind.loads_adapters and lora.publish == "adapter"
        adapter_config(folder, lora, served=served)


def is_at_hand(plan: Plan) -> bool:
    """True if the model's tokenizer needs not be fetched."""
    return plan.config.model == TINY or Path(plan.config.model).expanduser().is_dir()


def long_prompts(plan: Plan, *, train: bool = True) -> list[str]:
    """A line for each environment, split and reason with prompts that will be left out.

    They are no text, or leave no room for a turn.

    Raises:
        ConfigError: all of them would be; or the chat template cannot be used.
    """
    config = plan.config
    folder = resolve_tokenizer(config.model, seed=config.seed)
    codec = checked_codec(plan, folder)
    limit = make_limits(config, context_length(config, folder, plan.objects)).prompt_tokens
    return [
        line
        for env in plan.envs
        for split in used_splits(config, train)
        for line in _list_bad_prompts(env, split, codec, limit, config.seed)
    ]


def _list_bad_prompts(env: BoundEnv, split: str, codec: Codec, limit: int, seed: int) -> list[str]:
    listed = env.env_class.listed_tasks(split, env.config)
    tasks = [env.task(i, split, seed) for i in range(_TRIED)] if listed is None else listed
    found = [(task, odd_prompt(env.prototype, env.name, task)) for task in tasks]
    odd = [prompt for _, prompt in found if prompt is not None]
    sound = [task for task, prompt in found if prompt is None]
    long, sure = find_long(env.prototype, env.name, sound, codec, limit) if sound else ([], True)
    if len(odd) + len(long) == len(tasks):
        which = f"the first {len(tasks)} tasks" if listed is None else f"all {len(tasks)} tasks"
        shortest = min(long, key=lambda prompt: prompt.tokens, default=None)
        said = f"too long a prompt: {shortest}" if shortest else f"no text as prompt: {odd[0]}"
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
