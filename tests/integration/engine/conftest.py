from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.integration.engine.plain import random_llama


@pytest.fixture(scope="session")
def llama() -> LlamaForCausalLM:
    return random_llama()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
