"""The settings of an engine."""

from typing import Literal

from pydantic import Field

from agentrl.config.base import Config


class EngineConfig(Config):
    """How completions are sampled; the local engine runs inside the process."""

    kind: Literal["local"] = Field(default="local", description="which engine samples")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="number format of the weights; auto: that of the model, or float32 on a CPU "
        "that cannot multiply bfloat16",
    )
    slots: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="most sequences kept at once",
    )
    context_length: int = Field(
        default=0,
        ge=0,
        description="most tokens of prompt and completion; 0: as the model allows",
    )
    prefill_tokens: int = Field(
        default=512, ge=16, description="most prompt tokens computed between two sampled tokens"
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="torch threads of the sampling thread; 0 leaves torch's setting",
    )
    timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="seconds after which an unanswered request is an engine error",
    )
    share_weights: bool | Literal["auto"] = Field(
        default="auto",
        description="sample with the trainer's own parameters; auto: where the dtypes agree",
    )
