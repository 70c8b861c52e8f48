"""What TRL's trainers make of one step, beside what ours makes of it: values and gradients.

    PYTHONPATH=benchmarks/.peers python benchmarks/trl_agreement.py

`trl_steps.py` says how a step of TRL is asked for. Each line is a row of the table in
docs/algorithms.md and the largest difference, of the largest value: of advantages, or of a loss and
its gradient by each logprob. Exits 1 where one is above 2e-4.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false
# mypy: ignore-errors
# TRL is typed in part, and not there where types are checked.

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.trainer.algorithms.estimators import BUILT_IN as ESTIMATORS
from agentrl.trainer.algorithms.kl import k2, k3
from agentrl.trainer.algorithms.losses import BUILT_IN as LOSSES
from agentrl.trainer.algorithms.normalisations import BUILT_IN as NORMALISATIONS
from agentrl.trainer.algorithms.trained_tokens import TrainedTokens, trained_tokens
from benchmarks.trl_steps import EPISODES, GROUP, LENGTH, Step, ask_trl

KL_COEF = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row of the table: ours, theirs, and the equation between them."""

    ours: str
    theirs: str
    equation: str = "equal"
    compare: Callable[[], tuple[Tensor, Tensor]]

    @property
    def row(self) -> str:
        """As the document has it."""
        return f"| {self.ours} | {self.theirs} | {self.equation} |"


def advantage(
    name: str,
    equation: str = "equal",
    to_theirs: Callable[[np.ndarray, Step], np.ndarray] = lambda mine_E, _: mine_E,
    **config: object,
) -> Pair:
    """One of an estimator: ours is taken from the first trained token of each episode."""

    def compare() -> tuple[Tensor, Tensor]:
        step = ask_trl(**config)
        # Theirs goes by episodes whatever their length: each of one token here.
        one = replace(step, mask=torch.eye(1, step.mask.shape[1]).expand_as(step.mask))
        mine_E = ESTIMATORS[name](one.batch)[one.batch.mask_N]
        return torch.from_numpy(to_theirs(mine_E, step)).float(), step.advantages_E

    theirs = name_trainer(**config)
    return Pair(ours=f"`{name}`", theirs=theirs, equation=equation, compare=compare)


def plain_k3(logprobs_K: Tensor, tokens: TrainedTokens) -> Tensor:
    """`trainer.kl.kind` k3."""
    return k3(logprobs_K, tokens.reference_K)


def ratio_times_k2(logprobs_K: Tensor, tokens: TrainedTokens) -> Tensor:
    """k2, with the ratio as a constant weight; what it is worth is another thing than theirs."""
    return torch.exp(logprobs_K - tokens.old_K).detach() * k2(logprobs_K, tokens.reference_K)


def loss(
    name: str,
    normalise: str,
    equation: str = "equal",
    *,
    options: Mapping[str, float] = MappingProxyType({}),
    penalty: Callable[[Tensor, TrainedTokens], Tensor] | None = None,
    **config: object,
) -> Pair:
    """One of a loss: its value, and its gradient by each logprob."""

    def compare() -> tuple[Tensor, Tensor]:
        step = ask_trl(kl_coef=0.0 if penalty is None else KL_COEF, **config)
        label, _, length = normalise.rstrip(")").partition("(length=")
        extra = {"length": int(length)} if length else {}
        batch = replace(step.batch, weights_N=NORMALISATIONS[label](step.batch, **extra))
        trained = step.mask.bool()
        logprobs_K = step.new[trained].requires_grad_()
        tokens = trained_tokens(batch, np.flatnonzero(batch.mask_N), logprobs_K.detach())
        total, _ = LOSSES[name](logprobs_K, tokens, **options)
        if penalty is not None:
            penalty_K = penalty(logprobs_K, tokens)
            total = total + KL_COEF * (tokens.weights_K * penalty_K).sum()
        (gradient_K,) = torch.autograd.grad(total, logprobs_K)
        mine = torch.cat([total.detach()[None], gradient_K])
        other = torch.cat([torch.tensor([step.loss]), step.gradient[trained]])
        return (mine[1:], other[1:]) if penalty is ratio_times_k2 else (mine, other)

    given = ", ".join(f"{key}={value:g}" for key, value in options.items())
    ours = f"`{name}({given})`, `{normalise}`" if given else f"`{name}`, `{normalise}`"
    theirs = name_trainer(**({} if penalty is None else {"beta": KL_COEF}), **config)
    return Pair(ours=ours, theirs=theirs, equation=equation, compare=compare)


def name_trainer(kind: str = "GRPO", **config: object) -> str:
    """The trainer and its settings as the document has them."""
    given = ", ".join(f"{key}={value!r}" for key, value in config.items())
    return f"`{kind}Trainer`, `{given}`".replace("'", '"')


def to_sample_deviation(mine_E: np.ndarray, step: Step) -> np.ndarray:
    """Ours over the deviation of a sample, to which 1e-4 was added."""
    deviations_G = step.rewards.sum(1).reshape(-1, GROUP).std(1, ddof=1)
    factors_G = ((GROUP - 1) / GROUP) ** 0.5 * deviations_G / (deviations_G + 1e-4)
    return mine_E * np.repeat(factors_G, GROUP)


def compare_distillation() -> tuple[Tensor, Tensor]:
    """Divergence of four positions, and its gradient by the policy's logits.

    Ours is what the advantages and the policy gradient come to on average: the sum over all of the
    vocabulary, each token weighed by its probability.
    """
    from trl.experimental.gkd import GKDTrainer

    logits, teacher = torch.randn((2, 4, EPISODES // 4), generator=torch.Generator().manual_seed(1))
    logits.requires_grad_()
    logprobs = torch.log_softmax(logits, 1)
    old, reference = logprobs.detach().view(-1, 1), torch.log_softmax(teacher, 1).view(-1, 1)
    zeros = torch.zeros_like(old)
    step = Step(
        mask=torch.ones_like(old),
        rewards=np.zeros((EPISODES, 2)),
        advantages_E=zeros[:, 0],
        shuffled_E=zeros[:, 0],
        old=old,
        new=old,
        reference=reference,
        loss=0.0,
        gradient=zeros,
    )
    batch = replace(step.batch, advantages_N=ESTIMATORS["distill"](step.batch))
    weights_N = np.where(batch.mask_N, np.exp(batch.logprobs_N) / len(logits), 0)
    batch = replace(batch, weights_N=weights_N.astype(np.float32))
    tokens = trained_tokens(batch, np.flatnonzero(batch.mask_N), old)
    total, _ = LOSSES["policy_gradient"](logprobs.flatten(), tokens)
    value = -(tokens.weights_K * tokens.advantages_K).sum()
    labels = torch.zeros(4, dtype=torch.long)
    divergence = GKDTrainer.generalized_jsd_loss(logits, teacher, labels, beta=1)
    mine, other = torch.autograd.grad(total, logits)[0], torch.autograd.grad(divergence, logits)[0]
    return (
        torch.cat([value[None], mine.flatten()]),
        torch.cat([divergence.detach()[None], other.flatten()]),
    )


PAIRS = [
    advantage(
        "grpo",
        "ours sqrt((G - 1) / G) s / (s + 1e-4), s the sample's deviation",
        to_sample_deviation,
        scale_rewards="group",
    ),
    advantage("dr_grpo", scale_rewards="none"),
    advantage(
        "gdpo",
        "ours sqrt((E - 1) / E) on E episodes of one token: whitened over episodes, by a sample's "
        "deviation, and 1e-4",
        lambda mine_E, _: mine_E * ((EPISODES - 1) / EPISODES) ** 0.5,
        multi_objective_aggregation="normalize_then_sum",
    ),
    advantage("rloo", kind="RLOO", beta=0),
    loss("clip", "sequence_mean", loss_type="grpo"),
    loss("clip", "token_mean", loss_type="bnpo"),
    loss("clip", "token_mean", loss_type="dapo"),
    loss("clip", f"sequence_sum(length={LENGTH})", loss_type="dr_grpo"),
    loss(
        "clip",
        "token_mean",
        "equal with `trainer.kl.kind` k3",
        penalty=plain_k3,
        loss_type="bnpo",
        use_bias_correction_kl=False,
    ),
    loss(
        "clip",
        "token_mean",
        "the gradient of r k3, through r too: that of our k2 times r; values differ",
        penalty=ratio_times_k2,
        loss_type="bnpo",
    ),
    loss("dual_clip", "token_mean", options={"most": 1.5}, loss_type="bnpo", delta=1.5),
    loss(
        "gspo",
        "sequence_mean",
        options={"low": 0.02, "high": 0.02},
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=0.02,
    ),
    loss("cispo", "token_mean", options={"high": 0.2}, loss_type="cispo", epsilon_high=1.2),
    loss("sapo", "sequence_mean", loss_type="sapo"),
    loss("gmpo", "sequence_mean", kind="GMPO", epsilon=0.4),
    Pair(
        ours="`distill`, `policy_gradient`",
        theirs="`GKDTrainer.generalized_jsd_loss(beta=1)`",
        equation="equal on average over what the policy samples",
        compare=compare_distillation,
    ),
]


def main() -> int:
    """Print a line for each pair; 1 if one is further off than rounding."""
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong = 0
    for pair in PAIRS:
        mine, other = pair.compare()
        off = float((mine - other).abs().max() / other.abs().max())
        print(f"{pair.row} {off:.1e}", flush=True)
        wrong += not off <= 2e-4
    print(f"{wrong} differ" if wrong else "all agree")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
