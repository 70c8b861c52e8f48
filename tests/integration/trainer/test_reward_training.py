"""`agentrl reward train`: from pairs to a verifier that prefers what was chosen."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GraniteConfig, GraniteForCausalLM, LlamaForSequenceClassification

from agentrl.cli import main
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.orchestration import jobs
from agentrl.orchestration.load import load_run_config
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.device import CPU
from agentrl.trainer.reward_trainer import IdPair, RewardTrainer

ENV = """
from agentrl.envs import ToolEnv
from agentrl.types import AssistantTurn, Task

class Shop(ToolEnv):
    verifier = "exact_match"
    tasks = {split: [Task(prompt=f"Where is parcel {i}?", answer="") for i in range(4)]
             for split in ("train", "heldout")}

class Moody:
    def act(self, view):
        polite = "parcel 1" in view.task.prompt
        return AssistantTurn(text="Gladly: it is on its way." if polite else "No idea.")
"""


def write_pairs(path: Path, number: int = 40) -> Path:
    """Pairs of a taste that a few steps learn; every other one as messages."""
    with path.open("w") as file:
        for i in range(number):
            prompt, good, bad = f"Is item {i} there?", f"Gladly: {i} is.", f"No idea {i}."
            pair: Mapping[str, object] = {"prompt": prompt, "chosen": good, "rejected": bad}
            if i % 2:
                pair = {
                    "prompt": [{"role": "user", "content": prompt}],
                    "chosen": [{"role": "assistant", "content": good}],
                    "rejected": [{"role": "assistant", "content": bad}],
                    "source": "a column of its own",
                }
            file.write(json.dumps(pair) + "\n")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """What a command prints with `--json`."""
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_trained_model_is_a_verifier_that_prefers_what_was_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    trained = ["reward", "train", str(pairs), "--batch", "9", "--heldout", "0.1"]
    planned = run(capsys, *trained, "--out", "judge", "--dry-run")
    assert not (tmp_path / "judge").exists()
    found = run(capsys, *trained, "--out", "judge")
    assert planned.items() <= found.items()
    assert (found["train_pairs"], found["heldout_pairs"], found["steps"]) == (36, 4, 12)
    heldout = found["heldout"]
    assert isinstance(heldout, dict)
    assert heldout["accuracy"] == 1.0
    assert 0 <= heldout["error"] < 0.5

    (tmp_path / "shop.py").write_text(ENV)
    settings = {"env": [{"name": "shop.py:Shop"}], "verifier": "reward_model:judge"}
    config = load_run_config(keywords={**settings, "eval.tasks": 4}).config
    played = jobs.evaluate(config, agent="shop.py:Moody")[1].episodes
    polite = [e.reward for e in played if "parcel 1" in e.task.prompt]
    rude = [e.reward for e in played if "parcel 1" not in e.task.prompt]
    assert (len(polite), len(rude)) == (1, 3)
    assert polite[0] > 0.5 > max(rude)


def test_training_is_the_same_for_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl", 6)
    trained = ["reward", "train", str(pairs), "--batch", "2", "--heldout", "0.4", "--passes", "1"]
    found = [
        run(capsys, *trained, "--out", str(tmp_path / out), "--seed", seed)["heldout"]
        for out, seed in (("one", "3"), ("two", "3"), ("other", "4"))
    ]
    assert found[0] == found[1] != found[2]
    weights = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("one", "two")]
    assert weights[0] == weights[1]


def make_trainer(folder: Path, **settings: object) -> RewardTrainer:
    """A trainer whose head is not 0, so that scores say something at once."""
    config = TrainerConfig.model_validate({"lr": 1e-3, **settings})
    trainer = RewardTrainer(load_model(folder), config, total_steps=4, device=CPU)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        trainer.head.weight.normal_(generator=generator)
    return trainer


def id_pairs(seed: int = 0) -> list[IdPair]:
    """Conversations that begin alike in some ids, of different lengths; one is all of another."""
    rng = np.random.default_rng(seed)
    pairs: list[IdPair] = []
    for shared, first, second in [(9, 3, 17), (16, 0, 5), (24, 7, 0), (3, 40, 1), (0, 2, 2)]:
        start = rng.integers(5, 700, shared).tolist()
        rest = [rng.integers(5, 700, number).tolist() for number in (first, second)]
        pairs.append((start + rest[0], start + rest[1]))
    return pairs


def test_margins_are_those_of_transformers_own_model_in_any_packing(tmp_path: Path) -> None:
    folder = resolve_model("tiny")
    trainer = make_trainer(folder)
    pad = int(trainer.model.config.pad_token_id)
    pairs = [*id_pairs(), ([9, 8, 7, pad, pad], [9, 8, 6])]
    trainer.export(folder, tmp_path / "out")
    plain: Any = LlamaForSequenceClassification.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        scores = [[float(plain(input_ids=torch.tensor([i])).logits) for i in p] for p in pairs]
    expected = np.array([chosen - rejected for chosen, rejected in scores])
    for budget in (1, 60, 4096):
        found = make_trainer(folder, token_budget=budget).margins(pairs)
        assert found == pytest.approx(expected, abs=1e-4)


def test_a_step_is_the_same_for_any_budget() -> None:
    folder = resolve_model("tiny")
    after: list[NDArray[np.float64]] = []
    for budget in (1, 60, 4096):
        trainer = make_trainer(folder, token_budget=budget)
        losses = [trainer.update(id_pairs()) for _ in range(2)]
        after.append(np.array([*losses, *trainer.margins(id_pairs(1))]))
    for one, other in pairwise(after):
        assert one == pytest.approx(other, abs=2e-3)


def test_the_first_loss_is_that_of_a_head_of_zeros() -> None:
    trainer = RewardTrainer(
        load_model(resolve_model("tiny")), TrainerConfig(), total_steps=1, device=CPU
    )
    assert trainer.update(id_pairs()) == pytest.approx(np.log(2))


BAD = {
    "": "has no pairs",
    "{": "line 1 is no JSON",
    "[]": "line 1 has no prompt; the keys are prompt, chosen, rejected",
    '{"prompt": "a", "chosen": "b"}': "line 1 has no rejected",
    '{"prompt": "a", "chosen": "b", "rejected": 3}': "line 1 has a rejected that is neither",
    '{"prompt": [], "chosen": "b", "rejected": "c"}': "line 1 has a prompt that is neither",
    '\n{"prompt": "a", "chosen": "b", "rejected": "b"}': "line 2: chosen and rejected are the same",
    '{"prompt": "a", "chosen": "\\ud800", "rejected": "b"}': "half of a surrogate pair",
    '{"prompt": "a", "chosen": "b", "rejected": "c"}': "same prompt, expected at least two",
    json.dumps({"prompt": "word " * 3000, "chosen": "b", "rejected": "c"}): "takes 2,048; shorten",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_pairs_are_said_in_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    said = refuse(capsys, str(tmp_path / "bad.jsonl"), "--out", str(tmp_path / "out"))
    assert BAD[text] in said
    assert "bad.jsonl" in said
    assert not (tmp_path / "out").exists()


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence about bad input."""
    assert main(["reward", "train", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_a_model_without_a_form_for_scores_is_refused() -> None:
    config = GraniteConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    model = GraniteForCausalLM(config)
    with pytest.raises(ConfigError, match="GraniteForCausalLM has no form with a head of scores"):
        RewardTrainer(model, TrainerConfig(), total_steps=1, device=CPU)


def test_other_bad_input_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = str(write_pairs(tmp_path / "pairs.jsonl", 2))
    assert "cannot be read" in refuse(capsys, str(tmp_path / "none.jsonl"))
    assert "got no PAIRS" in refuse(capsys)
    assert "expected a number below 1" in refuse(capsys, pairs, "--heldout", "1")
    assert "is no folder" in refuse(capsys, pairs, "--model", "nowhere")
    assert "is there already" in refuse(capsys, pairs, "--out", str(tmp_path))
    assert "got the argument" in refuse(capsys, pairs, pairs)
    assert "unknown flag" in refuse(capsys, pairs, "--trainer.lr", "1")
    assert "this machine has cpu" in refuse(capsys, pairs, "--device", "abacus")
