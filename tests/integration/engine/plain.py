"""A random Llama of a few thousand parameters, and a slow, plain reference for what engines say."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentrl.engine import Engine

VOCAB = 97


def random_llama(seed: int = 0, *, tied: bool = True, kv_heads: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.train(False)
    return model


@dataclass(frozen=True)
class ModelWeights:
    """The parameters of a model as a weight source."""

    model: PreTrainedModel

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()


def reference_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0
) -> NDArray[np.float32]:
    """Logprobs of `sampled` after `prompt` by one full forward pass."""
    ids = torch.tensor([[*prompt, *sampled]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0] / temperature
    logprobs = torch.log_softmax(logits.float(), dim=-1)[len(prompt) - 1 : -1]
    return logprobs.gather(1, torch.tensor(list(sampled))[:, None])[:, 0].numpy()


async def sampled(engine: Engine, num: int) -> None:
    """Wait until the engine has sampled so many tokens."""
    async with asyncio.timeout(10):
        while (await engine.health()).sampled_tokens < num:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
