"""A small classifier that learns to tell real tests from decoys by their text alone."""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BUCKETS: Final = 4096
_STEPS: Final = 300
_RATE: Final = 0.5
_DECAY: Final = 1e-3
Floats = NDArray[np.float64]


def tell_apart(real: Sequence[str], decoys: Sequence[str], *, seed: int = 0) -> float:
    """How often it is right about a pair that it has not seen: 0.5 is guessing.

    It learns from half of the pairs and is asked about the others, then the other way round; it is
    shown a real test and its decoy and says which is which.
    """
    if len(real) != len(decoys) or len(real) < 4:
        raise ValueError(f"got {len(real)} tests and {len(decoys)} decoys; at least 4 pairs needed")
    features = np.stack([_featurize(a) - _featurize(b) for a, b in zip(real, decoys, strict=True)])
    features = features[:, features.any(axis=0)]
    order = np.random.default_rng(seed).permutation(len(real))
    halves = order[::2], order[1::2]
    right = [
        np.sign(features[asked] @ _train(features[known]))
        for known, asked in (halves, halves[::-1])
    ]
    said = np.concatenate(right)
    return float(np.mean((said + 1) / 2))


def _train(differences: Floats) -> Floats:
    """Logistic regression on the differences of pairs: its weights are large for what is real."""
    weights = np.zeros(differences.shape[1])
    for _ in range(_STEPS):
        doubt = 1 / (1 + np.exp(differences @ weights))
        weights += _RATE * (differences.T @ doubt / len(differences) - _DECAY * weights)
    return weights


def _featurize(text: str) -> Floats:
    """Hashed counts of tokens, their neighbours, shapes and pieces of characters."""
    counts = np.zeros(_BUCKETS)
    for feature in _features(text):
        counts[zlib.crc32(feature.encode("utf-8", "surrogateescape")) % _BUCKETS] += 1
    return np.log1p(counts)


def _features(text: str) -> Iterator[str]:
    tokens = re.findall(r"\w+|[^\w\s]", text)
    for before, token in zip(["", *tokens], tokens, strict=False):
        yield f"token {token}"
        yield f"pair {before} {token}"
        yield f"shape {re.sub('[a-z]+', 'a', re.sub('[0-9]', '0', token.lower()))}"
        if token.isdigit():
            yield f"parity {int(token) % 2} {token[-1]}"
    yield from (f"piece {text[i : i + 3]}" for i in range(len(text) - 2))
