"""Spaces of text and of token ids: equal by value, seedable, picklable.

Gymnasium's own Text space has a fixed alphabet and length; a policy writes what it likes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

_SAMPLE_LENGTH = 32
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABC 0123456789\n{}[]<>\"'.,:;!?+-*/=äß你😀"


class TextSpace(Space[str]):
    """Any str."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """No: text has no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short text of letters, digits, brackets and what else breaks naive code."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH))
        places = self.np_random.integers(len(_ALPHABET), size=length)
        return "".join(_ALPHABET[int(i)] for i in places)

    def contains(self, x: Any) -> bool:
        """True for every str."""
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Texts are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The inverse of `to_jsonable`."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    def __hash__(self) -> int:
        return hash(TextSpace)

    def __repr__(self) -> str:
        return "TextSpace()"


class TokenSpace(Space[tuple[int, ...]]):
    """Any sequence of ids below the vocabulary size."""

    def __init__(self, vocab_size: int, seed: int | np.random.Generator | None = None) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}, expected at least 1")
        self.vocab_size = vocab_size
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """No: a sequence of tokens has no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> tuple[int, ...]:
        """A short sequence of uniform ids."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH))
        ids: NDArray[np.int64] = self.np_random.integers(self.vocab_size, size=length)
        return tuple(int(i) for i in ids)

    def contains(self, x: Any) -> bool:
        """True for sequences and one-dimensional arrays of ids that exist."""
        if isinstance(x, np.ndarray):
            array = cast("NDArray[np.generic]", x)
            integers = np.issubdtype(array.dtype, np.integer)
            return array.ndim == 1 and integers and self._are_ids_in_vocabulary(array)
        if not isinstance(x, Sequence) or isinstance(x, str | bytes):
            return False
        ids = cast("Sequence[object]", x)
        integers = all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids)
        return integers and self._are_ids_in_vocabulary(ids)

    def _are_ids_in_vocabulary(self, ids: Any) -> bool:
        return all(0 <= i < self.vocab_size for i in ids)

    def to_jsonable(self, sample_n: Iterable[tuple[int, ...]]) -> list[list[int]]:
        """Lists of plain ints."""
        return [[int(i) for i in ids] for ids in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[tuple[int, ...]]:
        """The inverse of `to_jsonable`."""
        return [tuple(int(i) for i in ids) for ids in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSpace) and other.vocab_size == self.vocab_size

    def __hash__(self) -> int:
        return hash((TokenSpace, self.vocab_size))

    def __repr__(self) -> str:
        return f"TokenSpace({self.vocab_size})"
