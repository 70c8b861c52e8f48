"""Recipes: which packages, and how many tasks of each."""

from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from agentrl.config import Config
from agentrl.config.load import read_toml
from agentrl.errors import ConfigError

SHIPPED: Final = Path(__file__).parent / "recipe.toml"


class RecipeEntry(Config):
    """One package of a recipe."""

    source: str = Field(description="NAME==VERSION in the package index, or a folder")
    sha256: str = Field(default="", description="hash of the archive; empty: any")
    license: str = Field(default="", description="an SPDX name")
    tests: tuple[str, ...] = Field(default=(), description="arguments of pytest; default: all")
    requires: tuple[str, ...] = Field(default=(), description="what the tests import, for pip")
    tasks: int = Field(default=10, ge=1, description="tasks that are wanted")
    multiple: int = Field(default=2, ge=0, description="of them with two bugs")
    per_file: float = Field(default=0.5, gt=0, le=1, description="of them in one file, at most")


class Recipe(Config):
    """The content of a recipe file: a table `[[package]]` each."""

    package: tuple[RecipeEntry, ...] = Field(min_length=1, description="the packages")


def read_recipe(path: Path) -> tuple[RecipeEntry, ...]:
    """The packages of a recipe.

    Raises:
        ConfigError: The file cannot be read, or a key of it is wrong.
    """
    try:
        return Recipe.model_validate(read_toml(path)).package
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {key}: {first['msg']}") from error
