"""What the tests of rollouts share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.rollout import Codec
from agentrl.tokens import Tokenizer
from tests.integration.rollout.played import SERVICES


@pytest.fixture(scope="session")
def codec(tiny_folder: Path) -> Codec:
    """The tiny model's."""
    return Codec(Tokenizer.load(tiny_folder))


@pytest.fixture(scope="session", autouse=True)
def _services() -> Iterator[None]:
    yield
    SERVICES.close()
