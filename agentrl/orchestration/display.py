"""What the controller tells whoever watches; the command line shows it."""

from collections.abc import Mapping
from typing import Protocol

ROUTINE = frozenset({"rollout", "train", "publish", "eval", "checkpoint"})
"""The phases of every step; a plain log does not mention them."""


class Display(Protocol):
    """Shows a run while it goes on."""

    def phase(self, name: str) -> None:
        """Something long begins: "rollout", "train", "eval", "warm start", ..."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...

    def warn(self, text: str) -> None:
        """Something that must not be overlooked."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class Silent:
    """Shows nothing."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
