"""The settings of an engine."""

from typing import Literal

from pydantic import Field

from agentrl.config.base import Config


class EngineConfig(Config):
    """How completions are sampled; the local engine runs inside the process."""

    kind: Literal["local"] = Field("local", description="which engine samples")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="number format of the engine's weights; auto: that of the model it gets"
    )
    slots: int = Field(
        128, ge=1, le=4096, description="most sequences whose keys and values are kept at once"
    )
    context_length: int = Field(
        0, ge=0, description="most tokens of a prompt and its completion; 0: what the model allows"
    )
    prefill_tokens: int = Field(
        512, ge=16, description="most prompt tokens computed between two sampled tokens"
    )
    threads: int = Field(
        0, ge=0, description="torch threads of the sampling thread; 0 leaves torch's setting"
    )
    timeout_s: float = Field(
        600.0, gt=0, description="seconds after which an unanswered request is an engine error"
    )
    share_weights: bool | Literal["auto"] = Field(
        "auto",
        description="sample with the trainer's own parameters; auto: where the dtypes agree",
    )
