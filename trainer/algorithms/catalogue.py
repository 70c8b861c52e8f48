"""What is known of each built-in estimator and loss, from where it is defined."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError
from agentrl.trainer.algorithms.estimators import BUILT_IN as ESTIMATORS
from agentrl.trainer.algorithms.losses import BUILT_IN as LOSSES
from agentrl.trainer.algorithms.needs import COSTS, FLAGS, needs_of
from agentrl.trainer.algorithms.options import defaults_of

_PAPER = re.compile(r"arXiv:\d{4}\.\d{5}|Williams 1992")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEntry:
    """One estimator or loss."""

    name: str
    kind: str
    """estimator or loss."""
    about: str
    formula: str
    """What its definition says: the formula, a worked number, where it gives 0."""
    paper: str
    needs: tuple[str, ...]
    options: dict[str, float | bool]
    cost: str
    """What a step takes beside sampling, and the update's own pass forward and back."""
    command: str
    """Trains two steps with it."""


def entries() -> Iterator[AlgorithmEntry]:
    """All of them, estimators first."""
    for kind, built_in in (("estimator", ESTIMATORS), ("loss", LOSSES)):
        for name, function in built_in.items():
            yield _describe(name, kind, function)


def find_entry(name: str) -> AlgorithmEntry:
    """The one of a name; raises ConfigError if there is none."""
    found = {entry.name: entry for entry in entries()}
    if name not in found:
        raise ConfigError(f"algorithm {name!r} is unknown, {nearest(name, found)}")
    return found[name]


def _describe(name: str, kind: str, function: object) -> AlgorithmEntry:
    doc = inspect.getdoc(function) or ""
    module = inspect.getdoc(inspect.getmodule(function)) or ""
    about, _, rest = doc.partition("\n")
    paper = _PAPER.search(doc) or _PAPER.search(module)
    assert paper is not None
    needs = needs_of(function)
    flags = " ".join(FLAGS[need] for need in needs if need in FLAGS)
    env = "number_guess" if "state keys" in needs else "calculator"
    return AlgorithmEntry(
        name=name,
        kind=kind,
        about=about.rstrip("."),
        formula=textwrap.dedent(rest).strip(),
        paper=paper.group(),
        needs=needs,
        options=defaults_of(function),
        cost=", ".join(COSTS[need] for need in needs if need in COSTS) or "nothing more",
        command=f"agentrl train --env {env} --{kind} {name} {flags} --steps 2".replace("  ", " "),
    )
