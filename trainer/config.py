"""The trainer's settings, and the learning rate that they say."""

import math
from typing import Literal, assert_never, cast

from pydantic import Field, field_validator, model_validator

from agentrl.config import Config
from agentrl.config.anchor import Reference, is_url
from agentrl.config.nearest import nearest
from agentrl.engine.local.models.resolve import ModelName
from agentrl.errors import ConfigError
from agentrl.trainer.algorithms.presets import ALGORITHMS, has_critic, keys_of


class ClipConfig(Config):
    """How far the importance ratio may move a token's loss: [1 - low, 1 + high]."""

    low: float = Field(
        default=0.2, ge=0, le=1, description="how far below 1 the importance ratio counts"
    )
    high: float = Field(
        default=0.2, ge=0, description="how far above 1 the importance ratio counts"
    )


class KlConfig(Config):
    """A penalty for moving away from the reference: the starting weights, or `reference`."""

    coef: float = Field(
        default=0.0,
        ge=0,
        description="weight of the KL penalty to the reference, which is trainer.reference or "
        "the starting weights; 0: none",
    )
    kind: Literal["k1", "k2", "k3", "exact"] = Field(
        default="k3",
        description="estimator of the divergence at a token; k1: in the reward only; k2: its "
        "gradient in the loss is that of KL(policy || reference); k3: that of KL(reference || "
        "policy), as in GRPO; exact: over the whole vocabulary",
    )
    where: Literal["loss", "reward"] = Field(
        default="loss",
        description="what the penalty is added to; reward: each token's, before the estimator",
    )
    target: float | None = Field(
        default=None,
        gt=0,
        description="nats per token that the coefficient is moved towards; none: it stays",
    )
    horizon: float = Field(
        default=10.0,
        ge=1,
        description="steps over which a divergence 20 % off the target moves the coefficient by "
        "20 %",
    )

    def check(self) -> None:
        """Raise ConfigError for a setting that would do nothing."""
        if self.kind == "k1" and self.where == "loss":
            raise ConfigError(
                "trainer.kl.kind: got k1 with trainer.kl.where loss, where it has no gradient on "
                "average; set trainer.kl.where to reward, or take k2"
            )
        if self.target is None and self.horizon != type(self).model_fields["horizon"].default:
            raise ConfigError(
                f"trainer.kl.horizon: got {self.horizon:g} without trainer.kl.target; set that "
                "too, or leave it out"
            )


class RewardScaleConfig(Config):
    """What an episode's reward becomes before an estimator reads it: in this order."""

    running: bool = Field(
        default=False,
        description="take off the mean of all rewards so far, and divide by their deviation",
    )
    scale: float = Field(default=1.0, gt=0, description="what rewards are multiplied by")
    clip: float | None = Field(
        default=None, gt=0, description="rewards are kept within -clip and clip; none: as they are"
    )


class CostConfig(Config):
    """A cost that estimators safe and safe_gae keep below a limit."""

    part: str = Field(default="", description="part of the score that is the cost; empty: none")
    limit: float = Field(default=0.0, description="what an episode may cost on average")
    multiplier: float = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="what a unit of cost counts against one of reward at first",
    )
    rate: float = Field(
        default=0.1, gt=0, description="how fast the multiplier follows the excess of the cost"
    )


class RatioBandConfig(Config):
    """Where the importance ratios of the first update must lie, else the run stops.

    Later steps outside of it are an alarm if their gap is also ten times what the run has had.

    The first batch is on policy, so each ratio is 1 up to rounding: float32 engines are within 1e-5
    (mean) and 1e-3 (one token), bfloat16 ones of small models near 1e-2 and 3e-1. A wrong
    temperature, dropout or a shifted mask gives a mean above 1e-1.
    """

    mean: float = Field(
        default=0.05, gt=0, description="largest mean |ratio - 1| over the first batch's tokens"
    )
    max: float = Field(default=1.0, gt=0, description="largest |ratio - 1| of one token in it")


class CriticConfig(Config):
    """The critic of PPO: what it learns from, and how fast."""

    lr: float = Field(default=1e-5, gt=0, description="learning rate of the critic")
    clip: float = Field(
        default=0.2, gt=0, description="how far an update may move a value with a gradient"
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="the critic's gradient is scaled down to this norm"
    )
    updates: int = Field(default=1, ge=1, description="the critic's optimizer steps per mini-batch")
    pretrain: int = Field(
        default=0, ge=0, description="steps at the start in which the critic alone learns"
    )
    discount: float = Field(
        default=1.0, gt=0, le=1, description="what a reward one token later counts (gamma)"
    )
    decay: float = Field(default=0.95, ge=0, le=1, description="lambda of the policy's advantages")
    target_decay: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="lambda of the critic's targets; 1: the returns themselves",
    )


ALL_LINEAR = "all-linear"


class LoraConfig(Config):
    """Low-rank adapters are trained instead of all weights."""

    rank: int = Field(
        default=0, ge=0, description="rank of the adapters; 0 trains all weights instead"
    )
    alpha: int | None = Field(
        default=None, ge=1, description="adapters count alpha / rank; default: twice the rank"
    )
    targets: str = Field(
        default=ALL_LINEAR,
        description="layers that get one, such as q_proj,v_proj; all-linear: all but the head",
    )
    publish: Literal["merged", "adapter"] = Field(
        default="merged",
        description="what the engine gets; merged: weights with the adapters added; adapter: the "
        "adapters, which it keeps beside the base",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="number format of the frozen base"
    )


class TrainerConfig(Config):
    """How weights are updated."""

    algorithm: str = Field(
        default="grpo",
        description="sets estimator, loss and what goes with them (agentrl algorithm list)",
    )
    estimator: Reference = Field(
        default="grpo",
        description="how rewards become advantages: a name of agentrl algorithm list, "
        "pkg.mod:Name or path/file.py:Name",
    )
    loss: Reference = Field(
        default="clip",
        description="policy loss: a name of agentrl algorithm list, pkg.mod:Name or "
        "path/file.py:Name",
    )
    normalise: Reference = Field(
        default="token_mean",
        description="what each token counts in the loss: a name of agentrl algorithm list, "
        "pkg.mod:Name or path/file.py:Name",
    )
    correct: Reference = Field(
        default="none",
        description="what is done where the engine sampled otherwise than the trainer would: none, "
        "a name of agentrl algorithm list, pkg.mod:Name or path/file.py:Name",
    )
    minibatches: int = Field(
        default=1, ge=1, description="updates in which a batch is trained on once, of whole groups"
    )
    epochs: int = Field(default=1, ge=1, description="how often each batch is trained on")
    scale_by_std: bool = Field(
        default=True,
        description="divide advantages by their standard deviation: of the group (Dr. GRPO: "
        "false), or of the step's tokens with a critic",
    )
    optimizer: Literal["adamw", "adamw8bit"] = Field(
        default="adamw",
        description="adamw8bit keeps its state in 8 bits, with bitsandbytes or torchao",
    )
    lr: float = Field(default=1e-5, gt=0, description="peak learning rate")
    warmup_steps: int = Field(
        default=0, ge=0, description="updates over which the learning rate rises to its peak"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="how the learning rate falls to 0 after the warm-up"
    )
    weight_decay: float = Field(
        default=0.0, ge=0, description="AdamW's weight decay; norms and biases are left out"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the mean")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the variance")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="the gradient is scaled down to this norm"
    )
    clip: ClipConfig = Field(default=ClipConfig(), description="clipping of the importance ratio")
    kl: KlConfig = Field(default=KlConfig(), description="penalty to the reference")
    entropy_coef: float = Field(
        default=0.0, ge=0, description="weight of the entropy's bonus in the loss; 0: none"
    )
    reward: RewardScaleConfig = Field(
        default=RewardScaleConfig(), description="scale of the rewards that are trained on"
    )
    cost: CostConfig = Field(default=CostConfig(), description="a cost that is kept below a limit")
    reference: ModelName = Field(
        default="",
        description="the teacher of distill, and what the KL penalty holds the policy near: a "
        "model with the same vocabulary, or http://HOST:PORT of an SGLang server that has it "
        "loaded; empty: the starting weights",
    )
    critic: CriticConfig = Field(default=CriticConfig(), description="the critic of ppo")
    lora: LoraConfig = Field(default=LoraConfig(), description="low-rank adapters")
    ratio_band: RatioBandConfig = Field(
        default=RatioBandConfig(), description="check of the importance ratios of what is on policy"
    )
    max_gap_alarms: int = Field(
        default=3,
        ge=1,
        description="steps whose gap is far outside the run's, after which it stops; none of them "
        "is trained on",
    )
    token_budget: int = Field(
        default=4096, ge=1, description="tokens per micro-batch: bounds memory, not the result"
    )
    device: str = Field(
        default="cpu", description="where the trainer computes: cpu, auto or a kind of accelerator"
    )
    executor: Literal["inline", "processes", "ray"] | None = Field(
        default=None,
        description="where the ranks are: inline (in this process), processes of this machine, or "
        "ray (actors of a cluster); by default processes for several ranks, else inline",
    )
    ranks: int = Field(default=1, ge=1, description="processes that share the training")
    replicate: int = Field(
        default=1,
        ge=1,
        description="copies of the weights; each is sharded over ranks / replicate processes",
    )
    sequence_parallel: int = Field(
        default=1, ge=1, description="ranks that share the tokens of the same rows, for long ones"
    )
    rank_timeout_s: float = Field(
        default=600.0, gt=0, description="seconds that a rank waits for another in one exchange"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="what passes compute in; weights, gradient sums and moments stay float32",
    )
    fp32_head: bool = Field(
        default=False, description="compute the output head in float32 under bfloat16"
    )
    offload: bool = Field(
        default=False,
        description="keep weights, gradients and moments in host memory between their uses",
    )
    activation_checkpointing: bool = Field(
        default=False, description="compute each layer again in backward instead of keeping it"
    )
    activation_offload: bool = Field(
        default=False, description="keep what backward needs in host memory"
    )
    liger: bool = Field(
        default=False,
        description="compute norms and gated products by Liger's kernels, on an accelerator",
    )
    max_skipped_steps: int = Field(
        default=3, ge=1, description="non-finite gradients in a row after which the run stops"
    )

    @field_validator("algorithm")
    @classmethod
    def _check_algorithm_is_known(cls, name: str) -> str:
        if name not in ALGORITHMS:
            raise ValueError(f"got {name!r}, {nearest(name, ALGORITHMS)}")
        return name

    @model_validator(mode="before")
    @classmethod
    def _fill_from_algorithm(cls, data: object) -> object:
        """What the algorithm sets and nobody else does."""
        if not isinstance(data, dict):
            return data
        filled = dict(cast("dict[str, object]", data))
        for key, value in keys_of(str(filled.get("algorithm", "grpo"))).items():
            owner, *sections, name = key.split(".")
            section = ".".join(sections)
            if owner != "trainer":
                continue
            if not section:
                filled.setdefault(name, value)
            elif isinstance(given := filled.get(section, {}), dict):
                filled[section] = {name: value} | cast("dict[str, object]", given)
        return filled

    @property
    def has_critic(self) -> bool:
        """True if a critic is learned beside the policy."""
        return has_critic(self.algorithm)

    @property
    def has_reference(self) -> bool:
        """True if a model is kept that is not trained, to compare with."""
        return bool(self.reference_model) or (self.kl.coef > 0 and not self.reference)

    @property
    def reference_model(self) -> str:
        """The model that `reference` names; empty if a server has it, or if it names none."""
        return "" if is_url(self.reference) else self.reference

    @property
    def is_apart(self) -> bool:
        """True if processes of its own hold the weights; a CPU's are in host memory anyhow."""
        if self.executor is not None:
            return self.executor != "inline"
        return self.ranks > 1 or (self.offload and self.device != "cpu")


def learning_rate(update: int, config: TrainerConfig, total_updates: int) -> float:
    """The rate of the update after so many others; it reaches 0 after all, if it falls."""
    if update < config.warmup_steps:
        return config.lr * (update + 1) / config.warmup_steps
    left = max(1, total_updates - config.warmup_steps)
    progress = min(1.0, (update - config.warmup_steps) / left)
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - progress)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * progress)) / 2
    assert_never(config.schedule)


def check_heads(heads: int, groups: int, ranks: int) -> None:
    """Raise ConfigError unless so many ranks can share a model's attention heads.

    `groups` is the number of its key-value heads.
    """
    allowed = [str(n) for n in range(1, groups + 1) if heads % n == 0 and groups % n == 0]
    if str(ranks) not in allowed:
        *most, last = allowed
        raise ConfigError(
            f"trainer.sequence_parallel: got {ranks}, but the model has {heads} attention heads "
            f"and {groups} key-value heads, which can be shared by "
            f"{', '.join(most)}{' or ' if most else ''}{last} ranks"
        )
