import pytest
from transformers import LlamaForCausalLM

from tests.integration.engine.plain import random_llama
from tests.one_thread import one_thread

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def llama() -> LlamaForCausalLM:
    return random_llama()
