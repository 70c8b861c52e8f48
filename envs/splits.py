"""Splits that are disjoint by content: a hash of what makes a task new decides where it belongs."""

import hashlib

from agentrl.errors import ConfigError

SPLITS = ("train", "heldout")
_HELDOUT_SHARE = 0.2


def split_of(*content: object) -> str:
    """The split that this content belongs to, in every process and at every time."""
    digest = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / 2**64
    return "heldout" if share < _HELDOUT_SHARE else "train"


def require_split(split: str) -> None:
    """A ConfigError for a split that does not exist."""
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split}, expected {' or '.join(SPLITS)}")
