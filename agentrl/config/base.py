"""The base of every configuration class."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen and strict about keys; each field has a `Field(description=...)` for `--help`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )
