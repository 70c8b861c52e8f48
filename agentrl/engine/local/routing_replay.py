"""Which experts a mixture of experts sends each token to: noted while it runs, or given.

A mixture is found by what it does: a block that holds experts takes the best of their scores with
`torch.topk`, in itself or in a router below it. What that call gives is what is noted or replaced;
the weights of given experts are the block's own, with their gradient. Where only some groups of
experts may be chosen from, those of the given experts are.

Suffixes: N tokens of a pass, L blocks with experts.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (parts of torch and transformers are not typed)

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from agentrl.engine.experts import expert_counts, experts_per_token
from agentrl.engine.local.models.check import check_files
from agentrl.engine.local.models.files import read_json
from agentrl.errors import ConfigError

_CHOICES = frozenset(
    getattr(owner, name)
    for owner in (torch, Tensor)
    for name in ("argmax", "argsort", "kthvalue", "multinomial", "sort", "topk")
)


def mixtures(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The blocks that hold experts, by name in the order of the layers; none in a dense model."""
    return dict(_find_expert_blocks(model, "", expert_counts(model.config.to_dict())))


def recorded_experts(folder: Path) -> int:
    """How many experts a server has to record of each token in each layer; 0 if no layer mixes.

    A configuration may name experts of which its model has none.

    Raises ConfigError as `check_files` does, and for a mixture that does not say how many.
    """
    settings = cast("dict[str, object]", read_json(folder / "config.json"))
    if not expert_counts(settings) or not mixtures(check_files(folder)):
        return 0
    return experts_per_token(folder)


def experts_of(model: PreTrainedModel, block: nn.Module) -> list[nn.Module]:
    """The modules of a block of `mixtures` that hold its experts."""
    counts = expert_counts(model.config.to_dict())
    return [child for name, child in block.named_children() if _holds_experts(name, child, counts)]


@contextmanager
def routed(
    model: PreTrainedModel, experts: Sequence[Tensor] | None = None
) -> Generator[list[Tensor]]:
    """Send tokens to `experts`, [N, chosen] for each block, or note those that are chosen.

    Gives those of the last pass, in the order of `mixtures`. A model that chooses experts in a way
    that is not known raises ConfigError.
    """
    found = mixtures(model)
    if not found:
        with _NoChoice(model):
            yield []
        return
    noted = [torch.empty(0)] * len(found)
    num_experts = min(expert_counts(model.config.to_dict()), default=1)
    before = [block.__dict__.get("forward") for block in found.values()]
    for layer, (name, block) in enumerate(found.items()):
        choice = partial(_Choice, num_experts, None if experts is None else experts[layer])
        book = partial(_note_chosen_experts, name, block, noted, layer)
        block.forward = partial(_forward_with_choice, type(block).forward, block, choice, book)
    try:
        yield noted
    finally:
        for block, forward in zip(found.values(), before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward
    silent = [name for name, chosen in zip(found, noted, strict=True) if not len(chosen)]
    if 0 < len(silent) < len(found):
        raise ConfigError(
            _explain_unknown_router(silent[0], found[silent[0]], "outside of its own pass")
        )


def _explain_unknown_router(name: str, module: nn.Module, how: str) -> str:
    return (
        f"{name} ({type(module).__name__}) is part of a mixture that chooses its experts {how}, so "
        "those that an engine chose cannot be used in training; choose another model"
    )


def _find_expert_blocks(
    module: nn.Module, name: str, counts: frozenset[int]
) -> Iterator[tuple[str, nn.Module]]:
    children = dict(module.named_children())
    holders = [child for child in children if _holds_experts(child, children[child], counts)]
    if holders:
        yield name, module
    for child in children.keys() - set(holders) if holders else children:
        yield from _find_expert_blocks(children[child], f"{name}.{child}".lstrip("."), counts)


def _holds_experts(name: str, module: nn.Module, counts: frozenset[int]) -> bool:
    """By its name, or as matrices that are stacked (the second side tells them from filters)."""
    stacks = (p for p in module.parameters(recurse=False) if p.ndim == 3 and p.shape[1] > 1)
    return name == "experts" or any(len(p) in counts for p in stacks)


def _forward_with_choice(
    forward: Callable[..., Any],
    block: nn.Module,
    make_choice: Callable[[], "_Choice"],
    book: Callable[["_Choice"], None],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with make_choice() as choice:
        output = forward(block, *args, **kwargs)
    book(choice)
    return output


def _note_chosen_experts(
    name: str, block: nn.Module, noted: list[Tensor], layer: int, choice: "_Choice"
) -> None:
    if choice.chosen is None:
        raise ConfigError(_explain_unknown_router(name, block, "without torch.topk"))
    noted[layer] = choice.chosen


class _NoChoice(TorchFunctionMode):
    """A model in which no experts were found may choose nothing by scores: it would have some."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _CHOICES and args and args[0].is_floating_point():
            raise ConfigError(
                _explain_unknown_router("the model", self._model, "in no block that is known")
            )
        return func(*args, **(kwargs or {}))


class _Choice(TorchFunctionMode):
    """`torch.topk` of the scores of all experts takes the given ones, if any."""

    def __init__(self, num_experts: int, given: Tensor | None) -> None:
        super().__init__()
        self.chosen: Tensor | None = None
        """[N, chosen] What the last such call gave."""
        self._num_experts = num_experts
        self._given = given

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in (torch.topk, Tensor.topk):
            return func(*args, **(kwargs or {}))
        scores, *others = args
        if scores.shape[-1] < self._num_experts:
            return func(self._score_groups_of_experts(scores), *others, **(kwargs or {}))
        values, chosen = func(*args, **(kwargs or {}))
        if self._given is not None:
            chosen = self._given.view(chosen.shape)
            values = scores.gather(-1, chosen)
        self.chosen = chosen.flatten(0, -2)
        return values, chosen

    def _score_groups_of_experts(self, scores: Tensor) -> Tensor:
        """Scores of groups, [N, groups], in which those of the given experts are the best."""
        if self._given is None or scores.ndim != 2:
            return scores
        groups = self._given // (self._num_experts // scores.shape[-1])
        return scores.detach().scatter(-1, groups, torch.inf)
