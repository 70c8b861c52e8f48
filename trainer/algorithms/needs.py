"""What a function of the algorithms needs of a run, declared where it is defined.

    @needs("group of 2", "state keys")
    def gigpo(batch): ...

What is missing is refused at the start of a run, with its name; a user's own function declares its
needs in the same way, or has none.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])

ALL_ROWS: Final = "all rows"
"""What a loss needs that looks at rows which other ranks compute."""

NEEDS: Final = {
    "critic": "set trainer.algorithm to ppo",
    "reference": "set trainer.kl.coef above 0, or trainer.reference to a model",
    "teacher": "set trainer.reference to another model than the run begins with",
    "group of 2": "set rollout.group_size to 2 or more",
    "proximal": "let Trainer.with_outputs add it before the update",
    "greedy member": "set rollout.greedy_member to true",
    "state keys": "let the environment give state_key with each transition",
    "score parts": "let the verifier give parts with its score",
    "cost": "set trainer.cost.part to a part of the score",
    ALL_ROWS: "it is always there: each rank gets the whole mini-batch",
    "turn rewards": "make the batch with agentrl.rollout.make_batch",
}
"""What can be needed, and what to do where it is missing."""

FLAGS: Final = {
    "critic": "--trainer.algorithm ppo",
    "reference": "--trainer.kl.coef 0.01",
    "teacher": "--trainer.reference runs/teacher/model",
    "group of 2": "--rollout.group-size 4",
    "greedy member": "--rollout.greedy-member",
    "cost": "--trainer.cost.part tests",
}
"""How a command line gives what is not there by itself."""

PASSES: Final = {
    "critic": (4, "the critic before the update (1), and its own forward and back (3)"),
    "reference": (1, "the reference (1)"),
    "teacher": (1, "the teacher (1)"),
    "proximal": (1, "the policy before the update (1)"),
}
"""What it takes in each step over the rows that are trained on: 1 is a pass forward, 2 one back."""


def needs(*names: str) -> Callable[[F], F]:
    """Declare what a function, or a class whose instances are called, needs.

    Raises ConfigError for what nothing can give.
    """

    def declare(function: F) -> F:
        setattr(function, "needs", tuple(dict.fromkeys((*names, *needs_of(function)))))  # noqa: B010
        return function

    _check_needs_are_known(names)
    return declare


def needs_of(function: object) -> tuple[str, ...]:
    """What a function, a partial of one or an object that is called declares; () without any.

    Raises ConfigError for what nothing can give.
    """
    inner = getattr(function, "func", function)
    of_call = getattr(type(inner).__call__, "needs", ())
    declared: str | Sequence[str] = getattr(inner, "needs", of_call)
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    _check_needs_are_known(names)
    return names


def _check_needs_are_known(names: Sequence[str]) -> None:
    for name in names:
        if name not in NEEDS:
            raise ConfigError(f"needs: got {name!r}, {nearest(name, NEEDS)}")
