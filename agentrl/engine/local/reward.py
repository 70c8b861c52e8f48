"""Scores of a reward model: a sequence-classification head with one label on a language model."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (parts of torch and transformers are not typed)

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from agentrl.engine.local.models.load import load_whole
from agentrl.tokens import Renderer, Tokenizer
from agentrl.types import Message


def reward(folder: str, device: str, messages: Sequence[Message]) -> float:
    """The model's logit for a conversation; the first call loads the model into this process.

    Raises ValueError for a conversation that is longer than the model's context.
    """
    model, renderer = _load_scorer_once(folder, device)
    ids = renderer.conversation(messages)
    longest: int = model.config.max_position_embeddings
    if len(ids) > longest:
        raise ValueError(f"the episode has {len(ids)} tokens, the reward model takes {longest}")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids], device=device)).logits
    return float(logits[0, 0])


@cache
def _load_scorer_once(folder: str, device: str) -> tuple[PreTrainedModel, Renderer]:
    path = Path(folder)
    scorer = load_whole(path, AutoModelForSequenceClassification, "auto", device=device)
    return scorer, Renderer(Tokenizer.load(path))
