"""Settings of the sampling side."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config import Config
from agentrl.config.anchor import Reference
from agentrl.tokens import Reasoning, Results


class RolloutConfig(Config):
    """How many episodes, and within which budgets."""

    tasks_per_step: int = Field(default=16, ge=1, description="Tasks (groups) per optimizer step.")
    group_size: int = Field(
        default=8, ge=1, description="Episodes per task (G); most estimators compare them."
    )
    greedy_member: bool = Field(
        default=False,
        description="One more episode per task, at temperature 0, for estimators that compare "
        "with it; never trained on.",
    )
    sampler: Reference = Field(
        default="mixture",
        description="Which tasks a step takes: mixture, pkg.mod:Name or path/file.py:Name.",
    )
    refill: float = Field(
        default=1.0,
        ge=1,
        description="Most groups that a step draws, as a multiple of tasks_per_step: for each that "
        "teaches nothing another task is drawn, up to so many; 1: none is.",
    )
    overprovision: float = Field(
        default=1.0,
        ge=1,
        description="Groups that are begun for a step, as a multiple of tasks_per_step: the first "
        "that are ready are trained on, and async.late drop gives up the others; 1: none more.",
    )
    stragglers: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of a group's members that are stopped once the others have ended, where "
        "they take twice as long as those in the median; 0: none is.",
    )
    admission: Reference = Field(
        default="settings",
        description="Which groups are trained on, replaced, begun beyond need and waited for: "
        "settings (refill, overprovision, stragglers), pkg.mod:Name or path/file.py:Name.",
    )
    filter: Literal["none", "best_worst", "best_random"] = Field(
        default="none",
        description="Which episodes of a group are trained on, by the rank of their reward: as "
        "many of the best as of the worst, or as many of the best as of all others, at random.",
    )
    filter_share: float = Field(
        default=0.5, gt=0, le=1, description="Share of each group that the filter keeps."
    )
    overlong_buffer: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Last share of each limit of tokens, in which the reward falls; 0: none.",
    )
    overlong_penalty: float = Field(
        default=1.0, gt=0, description="What an episode loses that has used a limit up."
    )
    mask_cut: bool = Field(
        default=False, description="Leave episodes that a limit has cut out of the training."
    )
    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature.")
    max_new_tokens: int = Field(
        default=256, ge=1, description="Most tokens that the policy may sample in one turn."
    )
    max_context_tokens: int | None = Field(
        default=None,
        ge=2,
        description="Most tokens of a request with its completion; the engine's limit by default.",
    )
    max_episode_tokens: int | None = Field(
        default=None,
        ge=2,
        description="Most tokens of all segments of an episode, prompts included; no limit by "
        "default.",
    )
    max_turns: int | None = Field(
        default=None, ge=1, description="Most turns of an episode; the environment's by default."
    )
    reasoning: Reasoning = Field(
        default="keep",
        description="Where the chat template rewrites history (drops earlier thinking), keep it as "
        "sampled, or fork a new segment from the template's own rendering.",
    )
    tool_results: Results = Field(
        default="template",
        description="Results of calls as the chat template's tool messages, or, with tools and "
        "calls as plain text, as messages of the user.",
    )
    wall_s: float = Field(default=600.0, gt=0, description="Most seconds of an episode.")
    setup_s: float = Field(
        default=60.0, gt=0, description="Most seconds for an environment's reset or teardown."
    )
    concurrency: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default=256,
        description="Most episodes at the same time; auto: as many as the engine's cache holds.",
    )
    attempts: int = Field(
        default=3, ge=1, description="Tries of an episode that something outside the policy broke."
    )
    max_invalid_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="The run stops when a larger share of a step's episodes is invalid.",
    )
