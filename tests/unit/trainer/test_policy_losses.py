"""A policy loss of one's own: tried before a run, checked in each micro-batch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# torch is typed in part only.

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.errors import ConfigError, RunError
from agentrl.trainer.algorithms.losses import CheckedLoss, make_loss
from agentrl.trainer.algorithms.made_up import made_up_batch
from agentrl.trainer.algorithms.trained_tokens import TrainedTokens, trained_tokens
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.device import OutOfMemory

Loss = Callable[[Tensor, TrainedTokens], Any]
PLAIN = TrainerConfig(loss="<it>")


def surrogate(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
    return -(tokens.weights_K * tokens.advantages_K * logprobs_K).sum(), {}


def mean(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
    return -(tokens.advantages_K * logprobs_K).mean(), {}


def of_all_rows(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
    return surrogate(logprobs_K, tokens)[0] / max(1, len(set(tokens.row_K.tolist()))), {}


def of_sequences(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
    """One ratio per row, as in GSPO."""
    gap_K = logprobs_K - tokens.old_K
    same_KK = (tokens.row_K[:, None] == tokens.row_K).to(gap_K)
    mean_K = same_KK @ gap_K / same_KK.sum(1).clamp(min=1)
    return -(mean_K.exp() * tokens.advantages_K * tokens.weights_K).sum(), {"ratio": mean_K.sum()}


def with_bonus(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
    bonus = 0.01 * (tokens.weights_K * logprobs_K).sum()
    return surrogate(logprobs_K, tokens)[0] + bonus, {"bonus": len(logprobs_K)}


def detached(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
    return surrogate(logprobs_K.detach(), tokens)


def tokens_of(names: slice) -> tuple[Tensor, TrainedTokens]:
    batch = made_up_batch()
    ones_N = np.ones(batch.num_tokens, np.float32)
    batch = replace(batch, advantages_N=ones_N, weights_N=ones_N)
    source_K = np.flatnonzero(batch.mask_N)[names]
    logprobs_K = torch.full((len(source_K),), -0.4, requires_grad=True)
    return logprobs_K, trained_tokens(batch, source_K, logprobs_K.detach())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (mean, "for them one by one and nan for no token: expected a sum over tokens; it"),
        (
            lambda logprobs_K, tokens: (-(tokens.advantages_K * logprobs_K).sum(), {}),
            "with twice the weights: expected a sum of terms that are multiplied by tokens.weights",
        ),
        (of_all_rows, "expected a sum over tokens"),
        (detached, "gave a sum without a gradient; compute it by logprobs_K"),
        (lambda logprobs_K, tokens: logprobs_K.sum(), "gave a tensor of shape () alone, expected"),
        (lambda logprobs_K, tokens: (logprobs_K, {}), "(Tensor, dict), the first of shape (10,)"),
        (lambda logprobs_K, tokens: 7, "gave a int, expected a scalar tensor and a mapping"),
        (lambda logprobs_K, tokens: (logprobs_K.sum(), {"a": "b"}), "a statistic raised ValueErr"),
        (lambda logprobs_K, tokens: tokens.nothing, "<it> raised AttributeError: 'TrainedTok"),
        (lambda logprobs_K: logprobs_K, "loss <it> takes (logprobs_K), expected (logprobs_K, tok"),
    ],
)
def test_a_wrong_loss_is_found_before_the_run(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_loss(PLAIN, given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["weights_K", "advantages_K", "old_K"])
def test_one_that_writes_into_what_others_read_is_refused(name: str) -> None:
    """The penalty to the reference takes the same weights after it."""

    def doubles(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
        getattr(tokens, name).mul_(2)
        return surrogate(logprobs_K, tokens)

    def clips(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
        logprobs_K.detach().clamp_(min=-0.1)
        return surrogate(logprobs_K, tokens)

    def marks(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
        tokens.batch.rewards_E[:] = 0
        return surrogate(logprobs_K, tokens)

    for wrong in (doubles, clips):
        with pytest.raises(ConfigError, match=r"<it> writes into the tensors that it is given; le"):
            make_loss(PLAIN, wrong)
    with pytest.raises(ConfigError, match="is read-only"):
        make_loss(PLAIN, marks)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"loss clpi is unknown .*, did you mean clip"):
        make_loss(TrainerConfig(loss="clpi"))


def test_the_trial_finds_what_a_loss_needs() -> None:
    plain, sequences, bonus = (make_loss(PLAIN, f) for f in (surrogate, of_sequences, with_bonus))
    assert (plain.names, sequences.names, bonus.names) == ((), ("ratio",), ("bonus",))
    assert [one.is_active_everywhere for one in (plain, sequences, bonus)] == [False, False, True]
    pieces = TrainerConfig(loss="<it>", ranks=2, sequence_parallel=2)
    assert make_loss(pieces, surrogate).names == ()
    with pytest.raises(ConfigError, match=r"<it> needs whole rows: set trainer\.sequence_parallel"):
        make_loss(pieces, of_sequences)


def test_the_built_in_loss_is_one_of_them() -> None:
    loss = make_loss(TrainerConfig())
    assert (loss.names, loss.is_active_everywhere) == (("clip_fraction",), False)
    logprobs_K, tokens = tokens_of(slice(3))
    total, found = loss(logprobs_K, tokens)
    assert total.item() == pytest.approx(-3 * float(np.exp(0.1)))
    assert found == [0.0]
    narrow = TrainerConfig.model_validate({"clip": {"high": 0.01}})
    assert make_loss(narrow)(logprobs_K, tokens)[1] == [3.0]


def later(other: Loss) -> CheckedLoss:
    """A loss that is sound until it gets two tokens of one row alone."""
    loss = make_loss(PLAIN, lambda a, b: (other if len(a) == 3 else surrogate)(a, b))
    return loss


def test_one_that_goes_wrong_later_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"<it> gave the statistics x, expected the same .*\(none\)"):
        later(lambda a, b: (a.sum(), {"x": 1}))(*tokens_of(slice(3)))
    with pytest.raises(RunError, match=r"<it> gave a NoneType, expected a scalar"):
        later(lambda a, b: None)(*tokens_of(slice(3)))

    def full(logprobs_K: Tensor, tokens: TrainedTokens) -> Any:
        raise MemoryError

    with pytest.raises(OutOfMemory):
        later(full)(*tokens_of(slice(3)))
