"""A real language model, fetched and converted once into the cache."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return resolve_model("smollm2-135m")
    except ConfigError as e:
        pytest.skip(str(e))


def reference(model: PreTrainedModel, prompt: list[int], completion: Completion) -> np.ndarray:
    sampled = completion.ids_T.tolist()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + sampled]), use_cache=False).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), dim=-1)
    found: np.ndarray = logprobs[torch.arange(len(sampled)), torch.tensor(sampled)].numpy()
    return found


async def test_it_answers_and_its_logprobs_are_the_models(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt: list[int] = tokenizer.encode(QUESTION, add_special_tokens=False).ids
    model = load_model(folder, "float32")
    engine = LocalEngine(model, EngineConfig(slots=4))
    stop = frozenset({2})
    greedy, *sampled = await asyncio.gather(
        engine.generate(
            prompt, Sampling(max_new_tokens=24, temperature=0, stop_ids=stop), EpisodeSession("g")
        ),
        *(
            engine.generate(
                prompt, Sampling(max_new_tokens=24, seed=i, stop_ids=stop), EpisodeSession(str(i))
            )
            for i in range(3)
        ),
    )
    await engine.aclose()
    assert "Paris" in tokenizer.decode(greedy.ids_T.tolist())
    assert greedy.stop_reason is StopReason.STOP
    gaps = np.concatenate(
        [np.abs(reference(model, prompt, c) - c.logprobs_T) for c in (greedy, *sampled)]
    )
    assert gaps.mean() < 1e-5
    assert gaps.max() < 1e-3
