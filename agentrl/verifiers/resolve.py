"""From what a user writes to a verifier that is known to be one before a run starts."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from agentrl.config.anchor import REWARD_MODEL, anchored_reference
from agentrl.config.seams import Seam, instance_of
from agentrl.errors import ConfigError
from agentrl.verifiers.compare import ExactMatch, ExactNumber
from agentrl.verifiers.reward_model import from_text
from agentrl.verifiers.rubric import FormatOk, Rubric
from agentrl.verifiers.scoring import (
    Verifier,
    is_answer_verifier,
    is_async,
    is_composite,
    is_episode_verifier,
    method_of,
    name_of,
    score_range,
    success_at,
)
from agentrl.workers.pickling import CANNOT_PICKLE, dumps

BUILT_IN: Final[Mapping[str, Callable[[], Verifier]]] = {
    "exact_number": ExactNumber,
    "exact_match": ExactMatch,
    "format_ok": FormatOk,
}
VERIFIERS: Final = Seam("verifier", BUILT_IN, "agentrl.verifiers")


def resolve_verifier(ref: object, folder: Path | None = None) -> Verifier:
    """The verifier that `ref` is or names; a class is instantiated without arguments.

    Args:
        ref: an object, a built-in or installed name, `pkg.mod:Name`, `path/file.py:Name` or
            `reward_model:FOLDER[@DEVICE]`.
        folder: what relative paths start at; by default the working folder.

    Raises:
        ConfigError: there is none, or it is not a verifier that can run.
    """
    if isinstance(ref, str) and folder is not None:
        ref = anchored_reference(ref, folder)
    label = f"verifier {ref}" if isinstance(ref, str) else "verifier"
    is_model = isinstance(ref, str) and ref.startswith(REWARD_MODEL)
    found = from_text(str(ref)) if is_model else VERIFIERS.find(ref)
    verifier = instance_of(found, label)
    _check_verifier(verifier, label if isinstance(ref, str) else f"verifier {name_of(verifier)}")
    return cast("Verifier", verifier)


def _check_verifier(verifier: object, label: str) -> None:
    """Refuse what would make every episode Invalid."""
    if isinstance(verifier, Rubric):
        for name, part in verifier.verifiers.items():
            _check_verifier(part, f"{label}, part {name}")
    success_at(verifier)
    if is_composite(verifier):
        return
    if not (is_episode_verifier(verifier) or is_answer_verifier(verifier) or callable(verifier)):
        raise ConfigError(
            f"{label} has no score method; expected score(task, answer), score_episode(view) or a "
            f"function (task, answer), got a {type(verifier).__qualname__}"
        )
    score_range(verifier)
    method = method_of(cast("Verifier", verifier))
    _check_score_signature(method, is_episode_verifier(verifier), label)
    if not is_async(method) and not getattr(verifier, "in_process", False):
        _check_score_method_can_be_sent(method, label)


def _check_score_signature(method: Callable[..., object], episode: bool, label: str) -> None:
    expected = ("view",) if episode else ("task", "answer")
    try:
        signature = inspect.signature(method)
    except ValueError:
        return  # some builtins have none
    try:
        signature.bind(*expected)
    except TypeError as error:
        name = getattr(method, "__name__", "it")
        raise ConfigError(
            f"{label}: {name} takes {signature}, expected ({', '.join(expected)})"
        ) from error


def _check_score_method_can_be_sent(method: Callable[..., object], label: str) -> None:
    try:
        dumps(method)
    except CANNOT_PICKLE as error:
        raise ConfigError(
            f"{label} cannot be sent to the process that it should run in ({error}); open files, "
            "locks and connections inside score, or make score async"
        ) from error
