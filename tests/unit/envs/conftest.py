import pytest

from agentrl.tokens import Tokenizer
from tests.byte_tokenizer import byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()
