"""What an algorithm's name stands for: its functions, and the keys that its paper sets.

The normalisation is that of the paper where it says one; `grpo` is the exception, which takes the
token mean where its paper has the mean of sequence means.

What a user says wins over the keys.
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
    "dapo",
    "pf_ppo",
    "gspo",
    "gmpo",
    "cispo",
    "sapo",
    "dppo",
    "clip_cov",
    "kl_cov",
    "turn_ppo",
    "vapo",
    "decoupled_ppo",
    "tis",
    "icepop",
    "safe_grpo",
    "safe_ppo",
    "distill",
]

_CRITIC: Final[Mapping[str, Mapping[str, object]]] = {
    "ppo": {"estimator": "gae"},
    "turn_ppo": {"estimator": "turn_gae"},
    "vapo": {
        "estimator": "vapo",
        "loss": "clip_clone",
        "clip.high": 0.28,
        "critic.target_decay": 1.0,
        "critic.pretrain": 50,
    },
    "pf_ppo": {"estimator": "gae"},
    "decoupled_ppo": {"estimator": "gae", "correct": "decoupled"},
    "safe_ppo": {"estimator": "safe_gae"},
}
_LOSSES: Final = ("gspo", "gmpo", "cispo", "sapo", "dppo", "clip_cov", "kl_cov")
_NORMALISATIONS: Final = {
    "dr_grpo": "sequence_sum",
    **dict.fromkeys(("gspo", "gmpo", "sapo"), "sequence_mean"),
}

_KEYS: Final[Mapping[str, Mapping[str, object]]] = {
    **{name: {"estimator": name, "loss": "clip"} for name in get_args(Algorithm)},
    **{name: {"estimator": "grpo", "loss": name} for name in _LOSSES},
    **{name: {"estimator": "grpo", "loss": "clip", "correct": name} for name in ("tis", "icepop")},
    **{name: {"loss": "clip", **keys} for name, keys in _CRITIC.items()},
    "dapo": {"estimator": "grpo", "loss": "clip", "clip.high": 0.28},
    "safe_grpo": {"estimator": "safe", "loss": "clip"},
}

PRESETS: Final[Mapping[str, Mapping[str, object]]] = {
    name: {**keys, "normalise": _NORMALISATIONS.get(name, "token_mean")}
    for name, keys in _KEYS.items()
}
"""Keys of `TrainerConfig`."""

ROLLOUT: Final[Mapping[str, Mapping[str, object]]] = {
    "dapo": {"refill": 3.0, "overlong_buffer": 0.2},
    "remax": {"greedy_member": True},
    "pass_at_k": {"group_size": 8},
    "pf_ppo": {"group_size": 8, "filter": "best_worst", "filter_share": 0.5},
}
"""Keys of `RolloutConfig`, of those that change what is sampled or chosen too."""

PAPERS: Final[Mapping[str, str]] = {
    "dapo": "arXiv:2503.14476",
    "pf_ppo": "arXiv:2409.06957",
    "ppo": "arXiv:1707.06347",
}
"""Of those that are more than an estimator and a loss."""


def keys_of(algorithm: str) -> dict[str, object]:
    """All that an algorithm sets, by dotted key."""
    sections = {"trainer": PRESETS, "rollout": ROLLOUT}
    return {
        f"{section}.{key}": value
        for section, presets in sections.items()
        for key, value in presets.get(algorithm, {}).items()
    }


def has_critic(algorithm: str) -> bool:
    """True for those that learn a critic beside the policy."""
    return algorithm in _CRITIC
