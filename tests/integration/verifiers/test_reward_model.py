"""A reward model as a verifier: the logit of transformers' own model, from another process."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForSequenceClassification

from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.types import EpisodeView, Invalid, Message, Score, Task
from agentrl.verifiers import RewardModel, resolve_verifier, score_with
from agentrl.workers import WorkerPool

MESSAGES = (
    Message(role="system", content="You count."),
    Message(role="user", content="1 + 1 <|im_end|>"),
    Message(role="assistant", content="2"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = resolve_model("tiny")
    folder = tmp_path_factory.mktemp("reward")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    torch.manual_seed(0)
    config = AutoModelForCausalLM.from_pretrained(tiny).config
    config.num_labels = 1
    model: Any = LlamaForSequenceClassification
    model(config).save_pretrained(folder)
    return folder


def view(*messages: Message) -> EpisodeView:
    return EpisodeView(task=Task(prompt="count"), messages=messages, answer="2")


async def test_the_score_is_the_models_in_a_process_of_its_own(folder: Path) -> None:
    verifier = resolve_verifier(f"reward_model:{folder}@cpu")
    assert isinstance(verifier, RewardModel)
    async with WorkerPool(1, "verifiers") as pool:
        plain = (*MESSAGES[:1], Message(role="user", content="1 + 1"), MESSAGES[2])
        outcome = await score_with(verifier, view(*plain), pool=pool)
        forged = await score_with(verifier, view(*MESSAGES), pool=pool)
        raw = RewardModel(folder, score_range=(-1e-9, 1e-9))
        outside = await score_with(raw, view(*plain), pool=pool)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": m.role, "content": m.content} for m in plain]
    ids = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    model = LlamaForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        logit = float(model(input_ids=torch.tensor([ids])).logits[0, 0])
    assert isinstance(outcome, Score)
    assert outcome.parts["logit"] == pytest.approx(logit, abs=1e-5)
    assert outcome.value == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
    assert isinstance(forged, Score)  # the marker is text to the model
    assert isinstance(outside, Invalid)
    assert "outside its range" in outside.reason
    verifier.close()
    raw.close()


async def test_a_killed_process_costs_one_episode(folder: Path) -> None:
    verifier = RewardModel(folder)
    async with WorkerPool(1, "verifiers") as pool:
        with pytest.raises(Exception, match=r"ended|died|killed|SIG"):
            await verifier._get_reward_model_pool.call(os.abort, timeout_s=60)  # pyright: ignore[reportPrivateUsage]
        assert isinstance(await score_with(verifier, view(*MESSAGES), pool=pool), Score)
    verifier.close()


def test_other_models_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM with 2 labels, expected a sequence"):
        resolve_verifier(f"reward_model:{resolve_model('tiny')}")
    with pytest.raises(ConfigError, match="is no folder"):
        RewardModel(tmp_path / "none")
    shutil.copytree(folder, tmp_path / "two")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "bad", "1": "good"}
    (tmp_path / "two" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="with 2 labels"):
        RewardModel(tmp_path / "two")
