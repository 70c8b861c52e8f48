"""One step of a trainer of TRL, on made-up episodes: what it had, and what it made of it.

Advantages and losses of TRL are inside methods of its trainers, so trainers are made and train one
step of 32 episodes, on a random model of one layer. The rewards are ours. The logprobs are too: the
one method that runs the model, `_get_per_token_logps_and_entropies`, gives made-up ones that lie
far enough from the old ones for clips to act. Advantages are read from what
`_generate_and_score_completions` gives; `compute_loss` gives the loss.

Suffix: E episodes.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false
# mypy: ignore-errors
# TRL is typed in part, and not there where types are checked.

import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.rollout import make_batch
from agentrl.types import Batch

EPISODES, GROUP, LENGTH = 32, 8, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a trainer of TRL had in one step, and what it made of it; tensors are [B, T]."""

    mask: Tensor
    rewards: np.ndarray
    """[E, 2], one column for each reward function."""
    advantages_E: Tensor
    shuffled_E: Tensor
    """The same in the order of the rows; TRL shuffles them before it takes the loss."""
    old: Tensor
    new: Tensor
    reference: Tensor
    loss: float
    gradient: Tensor

    @property
    def batch(self) -> Batch:
        """The same for us: rows one after the other, each behind a prompt of one token."""
        episodes, length = self.mask.shape

        def lay_flat(values: Tensor) -> np.ndarray:
            padded = torch.cat([torch.zeros(episodes, 1), values * self.mask], 1)
            return padded.flatten().numpy().astype(np.float32)

        tokens = episodes * (length + 1)
        return replace(
            make_batch([], temperature=1.0),
            ids_N=np.zeros(tokens, np.int32),
            mask_N=lay_flat(torch.ones_like(self.mask)).astype(np.bool_),
            turns_N=np.zeros(tokens, np.int16),
            versions_N=np.zeros(tokens, np.int32),
            logprobs_N=lay_flat(self.old),
            reference_N=lay_flat(self.reference),
            advantages_N=lay_flat(self.shuffled_E[:, None].expand_as(self.mask)),
            offsets_R1=np.arange(episodes + 1) * (length + 1),
            episode_R=np.arange(episodes, dtype=np.int32),
            episode_ids=tuple(map(str, range(episodes))),
            group_E=np.arange(episodes, dtype=np.int32) // GROUP,
            rewards_E=self.rewards.sum(1),
            parts_E={"first": self.rewards[:, 0], "second": self.rewards[:, 1]},
            turn_rewards_U=self.rewards.sum(1),
            turn_offsets_E1=np.arange(episodes + 1),
        )


class Probe:
    """Made before a trainer of TRL, whose step it supplies and records."""

    kl_coef = 0.0

    def _get_per_token_logps_and_entropies(self, model: Any, ids: Tensor, *given: Any, **more: Any):
        """Made-up logprobs of the completions; old ones where no gradient is asked for."""
        logprobs = made_up_logprobs((len(ids), given[1]))[int(torch.is_grad_enabled())]
        self.leaf = logprobs.requires_grad_(torch.is_grad_enabled())
        return self.leaf, torch.zeros_like(logprobs), None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Tensor]:
        """TRL's; it shuffles the episodes afterwards."""
        found = super()._generate_and_score_completions(inputs)
        self.advantages_E = found["advantages"]
        return found

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], **more: Any) -> Tensor:
        """TRL's, of policy logprobs that have moved off the old ones."""
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        old, new, reference = made_up_logprobs(tuple(mask.shape))
        given = {"old_per_token_logps": old, "ref_per_token_logps": reference}
        self.beta = self.kl_coef
        loss = super().compute_loss(model, {**inputs, **given}, **more)
        (gradient,) = torch.autograd.grad(loss, self.leaf, retain_graph=True)
        self.step = Step(
            mask=mask.float(),
            rewards=np.array(made_up_rewards(), np.float64).T,
            advantages_E=self.advantages_E,
            shuffled_E=inputs["advantages"],
            old=old,
            new=new,
            reference=reference,
            loss=loss.item(),
            gradient=gradient,
        )
        return loss


def made_up_logprobs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Old, new and the reference's, the same in each call; ratios of 0.4 to 2.5."""
    noise = torch.Generator().manual_seed(3)
    old = -0.5 - 2 * torch.rand(shape, generator=noise)
    moved = [old + 0.3 * torch.randn(shape, generator=noise) for _ in range(2)]
    return old, moved[0], moved[1]


def made_up_rewards() -> tuple[list[float], list[float]]:
    """What two reward functions give to the episodes of a step."""
    first, second = np.random.default_rng(5).random((2, EPISODES))
    return first.tolist(), (10 * second).tolist()


def play(prompts: list[str], _: object) -> dict[str, list[list[int]]]:
    """Episodes of 4 to 12 tokens, whose third and last ones are the environment's."""
    lengths = np.random.default_rng(7).integers(4, LENGTH + 1, len(prompts)).tolist()
    return {
        "prompt_ids": [[3, 4]] * len(prompts),
        "completion_ids": [[5] * n for n in lengths],
        "logprobs": [[-1.0] * n for n in lengths],
        "env_mask": [[int(at not in (2, n - 1)) for at in range(n)] for n in lengths],
    }


def ask_trl(kind: str = "GRPO", kl_coef: float = 0.0, **config: object) -> Step:
    """One step of a trainer with this configuration."""
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl.experimental import gmpo

    home = gmpo if kind == "GMPO" else trl
    base: Any = getattr(home, f"{kind}Trainer")
    words = Tokenizer(models.WordLevel({str(n): n for n in range(16)}, unk_token="0"))
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        common = {"output_dir": folder, "use_cpu": True, "bf16": False, "report_to": []}
        common |= {"per_device_train_batch_size": EPISODES, "num_generations": GROUP}
        common |= {"max_completion_length": LENGTH, "max_steps": 1, "disable_tqdm": True}
        trainer = type(kind, (Probe, base), {"kl_coef": kl_coef})(
            model=Qwen2ForCausalLM(
                Qwen2Config(**sizes, num_attention_heads=1, num_key_value_heads=1)
            ),
            args=getattr(home, f"{kind}Config")(**common, save_strategy="no", **config),
            train_dataset=Dataset.from_list([{"prompt": "3 4"}] * (EPISODES // GROUP)),
            reward_funcs=[lambda at=at, **_: made_up_rewards()[at] for at in range(2)],
            processing_class=PreTrainedTokenizerFast(
                tokenizer_object=words, unk_token="0", pad_token="1", eos_token="2"
            ),
            **({} if kind == "RLOO" else {"rollout_func": play}),
        )
        with redirect_stdout(sys.stderr):  # it prints its metrics
            trainer.train()
    return trainer.step
