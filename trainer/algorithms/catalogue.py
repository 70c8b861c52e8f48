"""What is known of each built-in function of the algorithms, from where it is defined."""

import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from agentrl.config.nearest import nearest
from agentrl.config.seams import Seam, instance_of
from agentrl.errors import ConfigError, RunError
from agentrl.trainer.algorithms.corrections import BUILT_IN as CORRECTIONS
from agentrl.trainer.algorithms.estimators import BUILT_IN as ESTIMATORS
from agentrl.trainer.algorithms.losses import BUILT_IN as LOSSES
from agentrl.trainer.algorithms.made_up import made_up_batch, trial
from agentrl.trainer.algorithms.needs import FLAGS, PASSES, needs_of
from agentrl.trainer.algorithms.normalisations import BUILT_IN as NORMALISATIONS
from agentrl.trainer.algorithms.options import Option, defaults_of, split_options, with_options
from agentrl.trainer.algorithms.presets import ALGORITHMS, PAPERS, keys_of
from agentrl.trainer.algorithms.token_arrays import (
    call_on_batch,
    token_array_fault,
    weights_fault,
)
from agentrl.types import Batch

KINDS: Final[Mapping[str, tuple[str, Mapping[str, Callable[..., object]]]]] = {
    "estimator": ("--estimator", ESTIMATORS),
    "loss": ("--loss", LOSSES),
    "normalisation": ("--normalise", NORMALISATIONS),
    "correction": ("--correct", CORRECTIONS),
}
"""The flag that names one of a kind, and those that there are."""
_PARTS: Final[Mapping[str, Mapping[str, Callable[..., object]]]] = {
    "estimator": ESTIMATORS,
    "loss": LOSSES,
    "normalise": NORMALISATIONS,
    "correct": CORRECTIONS,
}
"""What the keys of an algorithm name."""
_ENVS = {"state keys": "number_guess", "score parts": "code_sandbox", "cost": "code_sandbox"}
"""The built-in environments that give what not all of them do."""
_SHORTENED: Final = {"vapo": " --trainer.critic.pretrain 1"}
"""What lets the policy learn in two steps."""
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_PAPER = re.compile(r"arXiv:\d{4}\.\d{5}|Williams 1992")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEntry:
    """One algorithm, or one function of a kind."""

    name: str
    kind: str
    """algorithm, or one of `KINDS`."""
    about: str
    formula: str
    """What its definition says: the formula, a worked number, where it gives 0."""
    paper: str
    needs: tuple[str, ...]
    options: dict[str, object]
    """With their defaults; of an algorithm the keys that it sets."""
    passes: int
    """What a step takes beside the update's own 3: 1 is a pass forward, 2 one back."""
    cost: str
    """The same in words, and what more is sampled."""
    command: str
    """Trains two steps with it."""


def entries() -> Iterator[AlgorithmEntry]:
    """All of them: algorithms, then kind by kind."""
    for name in ALGORITHMS:
        yield _make_entry_of_preset(name)
    for kind, (flag, built_in) in KINDS.items():
        for name, function in built_in.items():
            yield _make_entry_of_function(name, kind, function, f"{flag} {name}")


def find_entries(name: str) -> list[AlgorithmEntry]:
    """Those of a name or a reference; raises ConfigError if there is none."""
    if ":" in name:
        return _make_entries_of_reference(name)
    found = list(entries())
    if chosen := [entry for entry in found if entry.name == name]:
        return chosen
    raise ConfigError(f"algorithm {name!r} is unknown, {nearest(name, {e.name for e in found})}")


def _make_entries_of_reference(ref: str) -> list[AlgorithmEntry]:
    """A function of one's own, as each of the kinds that it may be."""
    seam = Seam("algorithm", {}, "agentrl.estimators")
    path, options = split_options(ref)
    label = seam.label(path)
    found = instance_of(seam.find(path), label)
    if not callable(found):
        raise ConfigError(f"{label} is of type {type(found).__name__}, expected a function")
    return [
        _make_entry_of_function(ref, kind, found, f"{KINDS[kind][0]} {shlex.quote(ref)}")
        for kind in _find_kinds(found, path, options)
    ]


def _find_kinds(
    function: Callable[..., object], path: str, options: Mapping[str, Option]
) -> list[str]:
    """A loss takes two arguments; the others take a batch, and what they give tells them apart.

    Raises ConfigError if that is nothing that any of them gives.
    """
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in _POSITIONAL and parameter.default is inspect.Parameter.empty
    ]
    if len(required) > 1:
        return ["loss"]
    label, batch = f"function {path}", made_up_batch(needs_of(function))
    with trial():
        chosen = cast("Callable[[Batch], object]", with_options(function, options, label))
        given = call_on_batch(label, chosen, batch)
        if isinstance(given, Batch):
            return ["correction"]
        if fault := token_array_fault(given, batch):
            raise RunError(f"{label} {fault}, or a batch")
    # Weights are at least 0, which advantages may be too.
    return ["estimator"] if weights_fault(given, batch) else ["estimator", "normalisation"]


def _make_entry_of_preset(name: str) -> AlgorithmEntry:
    options = keys_of(name)
    keys = {key: options.get(f"trainer.{key}") for key in _PARTS}
    parts = {key: known[str(keys[key])] for key, known in _PARTS.items() if keys[key]}
    needs = tuple(dict.fromkeys(need for part in parts.values() for need in needs_of(part)))
    named_by_loss = "loss" if keys["loss"] == name else "estimator"
    own = parts["correct" if "correct" in parts else named_by_loss]
    rounds = cast("float", options.get("rollout.refill", 1.0))
    return AlgorithmEntry(
        name=name,
        kind="algorithm",
        about=", ".join(f"{key} {keys[key]}" for key in parts),
        formula="\n\n".join(
            f"{key} {keys[key]}:\n{_split_definition(part)[1]}" for key, part in parts.items()
        ),
        paper=PAPERS.get(name) or _find_paper(own),
        needs=needs,
        options=options,
        passes=_count_passes(needs),
        cost=_describe_costs_of_needs(needs, rounds),
        command=_render_example_command(
            f"--algorithm {name}" + _SHORTENED.get(name, ""),
            [need for need in needs if need != "critic"],
        ),
    )


def _make_entry_of_function(name: str, kind: str, function: object, flags: str) -> AlgorithmEntry:
    about, formula = _split_definition(function)
    needs = needs_of(function)
    options: dict[str, object] = {**defaults_of(function)}
    for key, value in options.items():  # one's own function may have any default, or none
        if value is inspect.Parameter.empty:
            options[key] = "to be given"
        elif not isinstance(value, bool | int | float | str | None):
            options[key] = repr(value)
    return AlgorithmEntry(
        name=name,
        kind=kind,
        about=about.rstrip("."),
        formula=formula,
        paper=_find_paper(function),
        needs=needs,
        options=options,
        passes=_count_passes(needs),
        cost=_describe_costs_of_needs(needs),
        command=_render_example_command(flags, needs),
    )


def _split_definition(function: object) -> tuple[str, str]:
    """What a function's definition says: its first line, and the formula below."""
    about, _, rest = (inspect.getdoc(function) or "").partition("\n")
    return about, textwrap.dedent(rest).strip()


def _find_paper(function: object) -> str:
    """The first that is named where it is defined, or at the head of its file."""
    texts = (inspect.getdoc(function), inspect.getdoc(inspect.getmodule(function)))
    named = (found.group() for text in texts if (found := _PAPER.search(text or "")))
    return next(named, "none named")


def _count_passes(needs: Sequence[str]) -> int:
    return sum(PASSES[need][0] for need in needs if need in PASSES)


def _describe_costs_of_needs(needs: Sequence[str], refill: float = 1.0) -> str:
    passes = _count_passes(needs)
    costs = [f"{passes or 'no'} {'pass' if passes == 1 else 'passes'} beside the update's 3"]
    costs += [PASSES[need][1] for need in needs if need in PASSES]
    costs += ["one more episode for each group"] if "greedy member" in needs else []
    costs += [f"up to {refill:g} times the episodes"] if refill > 1 else []
    return "; ".join(costs)


def _render_example_command(flags: str, needs: Sequence[str]) -> str:
    env = next((env for need, env in _ENVS.items() if need in needs), "calculator")
    given = [FLAGS[need] for need in needs if need in FLAGS]
    return " ".join(["agentrl train --env", env, flags, *given, "--steps 2"])
