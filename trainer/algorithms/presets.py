"""What an algorithm's name stands for: an estimator, a loss, and the keys that its paper sets.

The normalisation is that of the paper where it says one; `grpo` is the exception, which takes the
token mean where its paper has the mean of sequence means.

Keys are those of `TrainerConfig`; what a user says wins over them.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

Algorithm = Literal[
    "grpo",
    "reinforce",
    "ppo",
    "dr_grpo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "opo",
    "gdpo",
    "maxrl",
    "pass_at_k",
    "gigpo",
    "gspo",
    "gmpo",
    "cispo",
    "sapo",
    "dppo",
    "clip_cov",
    "kl_cov",
    "turn_ppo",
    "vapo",
]

_CRITIC: Final[Mapping[str, Mapping[str, object]]] = {
    "ppo": {"estimator": "gae"},
    "turn_ppo": {"estimator": "turn_gae"},
    "vapo": {"estimator": "vapo", "clip.high": 0.28, "critic.target_decay": 1.0},
}
_LOSSES: Final = ("gspo", "gmpo", "cispo", "sapo", "dppo", "clip_cov", "kl_cov")
_NORMALISATIONS: Final = {
    "dr_grpo": "sequence_sum",
    **dict.fromkeys(("gspo", "gmpo", "sapo"), "sequence_mean"),
}

_KEYS: Final[Mapping[str, Mapping[str, object]]] = {
    **{name: {"estimator": name, "loss": "clip"} for name in get_args(Algorithm)},
    **{name: {"estimator": "grpo", "loss": name} for name in _LOSSES},
    **{name: {"loss": "clip", **keys} for name, keys in _CRITIC.items()},
}

PRESETS: Final[Mapping[str, Mapping[str, object]]] = {
    name: {**keys, "normalise": _NORMALISATIONS.get(name, "token_mean")}
    for name, keys in _KEYS.items()
}


def has_critic(algorithm: str) -> bool:
    """True for those that learn a critic beside the policy."""
    return algorithm in _CRITIC
