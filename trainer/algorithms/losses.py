"""The loss that a configuration names: found, tried on made-up tokens, checked each time.

Suffixes: K trained tokens of a micro-batch, N tokens of the batch, R rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch is typed in part only.

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.config.seams import Seam
from agentrl.errors import ConfigError, RunError
from agentrl.tools import user_code
from agentrl.trainer.algorithms.made_up import made_up_batch, trial
from agentrl.trainer.algorithms.needs import ALL_ROWS, needs_of
from agentrl.trainer.algorithms.options import Option, resolve_function
from agentrl.trainer.algorithms.policy_losses.cispo import cispo
from agentrl.trainer.algorithms.policy_losses.clip import clip
from agentrl.trainer.algorithms.policy_losses.clip_clone import clip_clone
from agentrl.trainer.algorithms.policy_losses.covariance import clip_cov, kl_cov
from agentrl.trainer.algorithms.policy_losses.dppo import dppo
from agentrl.trainer.algorithms.policy_losses.dual_clip import dual_clip
from agentrl.trainer.algorithms.policy_losses.gmpo import gmpo
from agentrl.trainer.algorithms.policy_losses.gspo import gspo
from agentrl.trainer.algorithms.policy_losses.plain import clone, policy_gradient
from agentrl.trainer.algorithms.policy_losses.sapo import sapo
from agentrl.trainer.algorithms.trained_tokens import (
    PolicyLoss,
    TrainedTokens,
    trained_tokens,
)
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.device import memory_errors
from agentrl.types import Batch
from agentrl.workers.pickling import CANNOT_PICKLE, dumps

_BOUNDED: Final = (clip, dual_clip, clip_cov, clip_clone)
"""Those that take their bounds from `trainer.clip`."""

BUILT_IN: Final[Mapping[str, PolicyLoss]] = {
    "clip": clip,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "dppo": dppo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "policy_gradient": policy_gradient,
    "clone": clone,
    "clip_clone": clip_clone,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLoss:
    """A loss that was tried; what it gives is checked each time."""

    label: str
    function: PolicyLoss
    token_budget: int
    names: tuple[str, ...] = ()
    """Of its statistics."""
    is_active_everywhere: bool = False
    """True if it has a gradient where the advantage is 0 too."""
    needs: tuple[str, ...] = ()
    clip_keys: frozenset[str] = frozenset()
    """The keys of `trainer.clip` that it has its options from."""

    def __call__(self, logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, list[float]]:
        """The sum, and the statistics in the order of `names`; raises RunError."""
        total, found = self.measure(logprobs_K, tokens)
        if tuple(sorted(found)) != self.names:
            raise RunError(
                f"{self.label} gave the statistics {_join_names_or_none(found)}, expected the same "
                f"names as at the start ({_join_names_or_none(self.names)})"
            )
        return total, [found[name] for name in self.names]

    def measure(self, logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, dict[str, float]]:
        """The sum and its statistics; raises RunError if they are not what they have to be."""
        result = self._call_on_tokens(logprobs_K, tokens)
        total, found = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
        if not isinstance(total, Tensor) or total.ndim or not isinstance(found, Mapping):
            raise RunError(
                f"{self.label} gave {_describe_result(result)}, expected a scalar tensor and a "
                "mapping of statistics"
            )
        if torch.is_grad_enabled() and not total.requires_grad:
            raise RunError(f"{self.label} gave a sum without a gradient; compute it by logprobs_K")
        with user_code(f"{self.label}: a statistic", fault=RunError):
            plain = {k: v.detach() if isinstance(v, Tensor) else v for k, v in found.items()}
            return total, {str(name): float(value) for name, value in plain.items()}

    def _call_on_tokens(self, logprobs_K: Tensor, tokens: TrainedTokens) -> object:
        """What it gives; raises RunError if it wrote into what others read after it."""
        given = (logprobs_K, tokens.old_K, tokens.advantages_K, tokens.weights_K, tokens.row_K)
        before = [tensor._version for tensor in given]
        with user_code(self.label, fault=RunError), memory_errors(self.token_budget):
            result = cast("object", self.function(logprobs_K, tokens))
        if [tensor._version for tensor in given] != before:
            raise RunError(
                f"{self.label} writes into the tensors that it is given; let it copy them first, "
                "such as by logprobs_K.clone()"
            )
        return result


def make_loss(config: TrainerConfig, given: object = None) -> CheckedLoss:
    """The configured loss, tried on made-up tokens; `given` is it where it is an object.

    Raises:
        ConfigError: there is none, what it gives is not what it has to be, it cannot go to the
            processes of the ranks, or it takes one update of a batch and several are asked for.
    """
    seam = Seam("loss", BUILT_IN, "agentrl.losses")
    bounds = {"low": config.clip.low, "high": config.clip.high}
    taken = dict[str, float]()

    def take_bounds(found: object, given: Mapping[str, Option]) -> Mapping[str, Option]:
        if found in _BOUNDED:
            taken.update({key: bounds[key] for key in bounds.keys() - given.keys()})
        return taken

    label, function = resolve_function(
        seam,
        config.loss,
        given,
        "logprobs_K",
        "tokens",
        keys=take_bounds,
    )
    loss = CheckedLoss(
        label=label,
        function=cast("PolicyLoss", function),
        token_budget=config.token_budget,
        needs=needs_of(function),
        clip_keys=frozenset(taken),
    )
    if function is policy_gradient and config.minibatches * config.epochs > 1:
        raise ConfigError(
            f"{label} has no ratio and is right on the first update of a batch only: leave out "
            "trainer.minibatches and trainer.epochs, or take clip"
        )
    if config.is_apart:
        _check_can_be_pickled(loss.function, label)
    with trial("made-up tokens"):
        return _try_loss(loss, in_pieces=config.sequence_parallel > 1)


def _check_can_be_pickled(found: object, label: str) -> None:
    try:
        dumps(found)
    except CANNOT_PICKLE as error:
        raise ConfigError(
            f"{label} cannot be sent to the trainer's ranks ({error}); keep open files, locks and "
            "connections out of it"
        ) from error


def _try_loss(loss: CheckedLoss, *, in_pieces: bool) -> CheckedLoss:
    """The loss with what a trial tells of it; raises RunError if it is no weighted sum."""
    batch = made_up_batch(loss.needs)
    all_K = np.flatnonzero(batch.mask_N)
    advantages_N = np.where(batch.mask_N, np.linspace(-1, 2, batch.num_tokens), 0.0)
    ones_N = batch.mask_N.astype(np.float32)
    batch = replace(batch, advantages_N=advantages_N.astype(np.float32), weights_N=ones_N)
    whole, gradient_K, names = _compute_loss_and_gradient(loss, batch, all_K)
    nothing, _, _ = _compute_loss_and_gradient(loss, batch, all_K[:0])
    row_K = np.searchsorted(batch.offsets_R1, all_K, side="right") - 1
    rows = [
        _compute_loss_and_gradient(loss, batch, all_K[row_K == r])[0] for r in range(batch.num_rows)
    ]
    if nothing != 0 or not _is_nearly_equal(sum(rows), whole):
        raise RunError(
            f"{loss.label} gives {whole:g} for {batch.num_rows} rows together, {sum(rows):g} for "
            f"them one by one and {nothing:g} for no token: expected a sum over tokens"
        )
    if ALL_ROWS not in loss.needs:
        singles = [batch.take_rows(np.arange(batch.num_rows) == r) for r in range(batch.num_rows)]
        alone = [
            _compute_loss_and_gradient(loss, one, np.flatnonzero(one.mask_N))[0] for one in singles
        ]
        if not _is_nearly_equal(sum(alone), whole):
            raise RunError(
                f"{loss.label} gives {whole:g} for {batch.num_rows} rows, but {sum(alone):g} where "
                "each is the only one of its batch: a rank has its own rows only, so declare "
                f'@needs("{ALL_ROWS}"), or look at no others'
            )
    doubled, _, _ = _compute_loss_and_gradient(loss, replace(batch, weights_N=2 * ones_N), all_K)
    if not _is_nearly_equal(doubled, 2 * whole):
        raise RunError(
            f"{loss.label} gives {whole:g}, and {doubled:g} with twice the weights: expected a sum "
            "of terms that are multiplied by tokens.weights_K"
        )
    if in_pieces and not _is_nearly_equal(_sum_loss_over_single_tokens(loss, batch, all_K), whole):
        raise RunError(
            f"{loss.label} needs whole rows: set trainer.sequence_parallel to 1, or take sums over "
            "rows by tokens.sum_pieces"
        )
    if not torch.isfinite(gradient_K).all():
        raise RunError(f"{loss.label} has a gradient that is not finite")
    idle = replace(batch, advantages_N=np.zeros(batch.num_tokens, np.float32))
    _, idle_K, _ = _compute_loss_and_gradient(loss, idle, all_K)
    return replace(loss, names=names, is_active_everywhere=bool(idle_K.any()))


def _sum_loss_over_single_tokens(
    loss: CheckedLoss, batch: Batch, all_K: NDArray[np.int64]
) -> float:
    """What it gives for the tokens one by one, each as the piece of a rank of its own."""
    summed: list[Tensor] = []

    def record(sums: Tensor) -> Tensor:
        summed.append(sums.detach())
        return sums

    _compute_loss_and_gradient(loss, batch, all_K, record)
    total = 0.0
    for k in all_K:
        known = iter(summed)

        def replay(sums: Tensor, known: Iterator[Tensor] = known) -> Tensor:
            return sums * 0 + next(known)

        total += _compute_loss_and_gradient(loss, batch, np.array([k]), replay)[0]
    return total


def _compute_loss_and_gradient(
    loss: CheckedLoss,
    batch: Batch,
    source_K: NDArray[np.int64],
    sum_pieces: Callable[[Tensor], Tensor] | None = None,
) -> tuple[float, Tensor, tuple[str, ...]]:
    """The sum, its gradient by the logprobs, and the names of the statistics."""
    # The ids of what is made up are numbers from 0, which go with a token wherever it stands.
    moved_K = batch.logprobs_N[source_K] - 0.3 + 0.03 * batch.ids_N[source_K]
    logprobs_K = torch.tensor(moved_K, dtype=torch.float32, requires_grad=True)
    tokens = trained_tokens(batch, source_K, logprobs_K.detach())
    if sum_pieces is not None:
        tokens = replace(tokens, sum_pieces=sum_pieces)
    with torch.enable_grad():
        total, found = loss.measure(logprobs_K, tokens)
        torch.autograd.backward(total)
    assert logprobs_K.grad is not None
    return float(total.detach()), logprobs_K.grad, tuple(sorted(found))


def _is_nearly_equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-5)


def _join_names_or_none(names: object) -> str:
    return ", ".join(map(str, cast("tuple[str, ...]", names))) or "none"


def _describe_result(result: object) -> str:
    if isinstance(result, Tensor):
        return f"a tensor of shape {tuple(result.shape)} alone"
    if isinstance(result, tuple) and result and isinstance(result[0], Tensor):
        kinds = ", ".join(type(item).__name__ for item in cast("tuple[object, ...]", result))
        return f"({kinds}), the first of shape {tuple(result[0].shape)}"
    return f"a {type(result).__name__}"
