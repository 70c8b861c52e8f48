"""What an algorithm's name stands for: its functions, and the keys that its paper sets.

The normalisation is that of the paper where it says one; `grpo` is the exception, which takes the
token mean where its paper has the mean of sequence means.

What a user says wins over the keys.
"""

from collections.abc import Mapping
from typing import Final

_ALIKE: Final[Mapping[str, object]] = {"loss": "clip", "normalise": "token_mean"}
"""What an algorithm has that names no other."""

ALGORITHMS: Final[Mapping[str, Mapping[str, object]]] = {
    "grpo": {"estimator": "grpo"},
    "reinforce": {"estimator": "reinforce"},
    "ppo": {"estimator": "gae"},
    "dr_grpo": {"estimator": "dr_grpo", "normalise": "sequence_sum"},
    "rloo": {"estimator": "rloo"},
    "reinforce_pp": {"estimator": "reinforce_pp"},
    "reinforce_pp_baseline": {"estimator": "reinforce_pp_baseline"},
    "remax": {"estimator": "remax", "rollout.greedy_member": True},
    "opo": {"estimator": "opo"},
    "gdpo": {"estimator": "gdpo"},
    "maxrl": {"estimator": "maxrl"},
    "pass_at_k": {"estimator": "pass_at_k", "rollout.group_size": 8},
    "gigpo": {"estimator": "gigpo"},
    "dapo": {
        "estimator": "grpo",
        "clip.high": 0.28,
        "rollout.refill": 3.0,
        "rollout.overlong_buffer": 0.2,
    },
    "pf_ppo": {
        "estimator": "gae",
        "rollout.group_size": 8,
        "rollout.filter": "best_worst",
        "rollout.filter_share": 0.5,
    },
    "gspo": {"estimator": "grpo", "loss": "gspo", "normalise": "sequence_mean"},
    "gmpo": {"estimator": "grpo", "loss": "gmpo", "normalise": "sequence_mean"},
    "cispo": {"estimator": "grpo", "loss": "cispo"},
    "sapo": {"estimator": "grpo", "loss": "sapo", "normalise": "sequence_mean"},
    "dppo": {"estimator": "grpo", "loss": "dppo"},
    "clip_cov": {"estimator": "grpo", "loss": "clip_cov"},
    "kl_cov": {"estimator": "grpo", "loss": "kl_cov"},
    "turn_ppo": {"estimator": "turn_gae"},
    "vapo": {
        "estimator": "vapo",
        "loss": "clip_clone",
        "clip.high": 0.28,
        "critic.target_decay": 1.0,
        "critic.pretrain": 50,
    },
    "decoupled_ppo": {"estimator": "gae", "correct": "decoupled"},
    "tis": {"estimator": "grpo", "correct": "tis"},
    "icepop": {"estimator": "grpo", "correct": "icepop"},
    "safe_grpo": {"estimator": "safe"},
    "safe_ppo": {"estimator": "safe_gae"},
    "distill": {"estimator": "distill"},
}
"""Keys of `TrainerConfig`, and with `rollout.` before them of `RolloutConfig`."""
_LEARN_A_CRITIC: Final = ("gae", "turn_gae", "vapo", "safe_gae")

PAPERS: Final[Mapping[str, str]] = {
    "dapo": "arXiv:2503.14476",
    "pf_ppo": "arXiv:2409.06957",
    "ppo": "arXiv:1707.06347",
}
"""Of those that are more than an estimator and a loss."""


def keys_of(algorithm: str) -> dict[str, object]:
    """All that an algorithm sets, by dotted key; nothing for an unknown one."""
    if algorithm not in ALGORITHMS:
        return {}
    return {
        key if key.startswith("rollout.") else f"trainer.{key}": value
        for key, value in {**_ALIKE, **ALGORITHMS[algorithm]}.items()
    }


def has_critic(algorithm: str) -> bool:
    """True for those that learn a critic beside the policy."""
    return ALGORITHMS[algorithm]["estimator"] in _LEARN_A_CRITIC
