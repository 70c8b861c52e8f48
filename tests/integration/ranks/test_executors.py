"""A run learns the same weights wherever its ranks are."""

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import ConfigError
from agentrl.testing.local_ray import LocalRay

ENV = f"{Path(__file__).parents[2] / 'e2e' / 'digits_env.py'}:Digits"


def is_joined() -> bool:
    import ray

    return ray.is_initialized()


def learned(folder: Path, name: str, model: Path, **keys: Any) -> bytes:
    """The weights that a short run ends with."""
    agentrl.train(
        ENV,
        name=name,
        model=str(model),
        runs_dir=str(folder),
        steps=2,
        threads=1,
        deterministic=True,
        tasks_per_step=2,
        group_size=4,
        lr=1e-2,
        rollout={"max_new_tokens": 8},
        **keys,
    )
    return (folder / name / "model" / "model.safetensors").read_bytes()


def test_the_same_weights_on_three_executors_and_on_two_raylets(
    tiny_folder: Path, tmp_path: Path, two_raylets: LocalRay
) -> None:
    cluster = {"ray": {"address": two_raylets.address}, "executor": "ray"}
    alone = learned(tmp_path, "inline", tiny_folder)
    assert learned(tmp_path, "apart", tiny_folder, executor="processes") == alone
    assert learned(tmp_path, "actor", tiny_folder, **cluster) == alone
    two = {"trainer": {"ranks": 2}}
    both = learned(tmp_path, "two", tiny_folder, **two)
    assert both != alone
    assert learned(tmp_path, "nodes", tiny_folder, **cluster, **two) == both
    assert not is_joined()


def test_a_cpu_too_few_is_said_in_a_sentence(
    tiny_folder: Path, tmp_path: Path, two_raylets: LocalRay
) -> None:
    with pytest.raises(ConfigError, match="3 ranks ask for 3 CPU, but the cluster has 2; take"):
        agentrl.train(
            ENV,
            model=str(tiny_folder),
            runs_dir=str(tmp_path),
            executor="ray",
            ray={"address": two_raylets.address},
            trainer={"ranks": 3},
        )
    assert not is_joined()
