"""What the tests of rollouts share."""

from pathlib import Path

import pytest

from agentrl.rollout import Codec
from agentrl.tokens import Tokenizer


@pytest.fixture(scope="session")
def codec(tiny_folder: Path) -> Codec:
    """The tiny model's."""
    return Codec(Tokenizer.load(tiny_folder))
