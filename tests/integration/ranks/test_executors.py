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
    cluster: dict[str, Any]
    cluster = {"ray": {"address": two_raylets.address}, "executor": "ray"}
    alone = learned(tmp_path, "inline", tiny_folder)
    assert learned(tmp_path, "apart", tiny_folder, executor="processes") == alone
    driven = {"ray": {**cluster["ray"], "players": 0}}  # the driver plays
    assert learned(tmp_path, "actor", tiny_folder, **cluster | driven) == alone
    two = {"trainer": {"ranks": 2}}
    both = learned(tmp_path, "two", tiny_folder, **two)
    assert both != alone
    assert learned(tmp_path, "nodes", tiny_folder, **cluster, **two) == both
    assert not is_joined()


@pytest.mark.parametrize(
    ("ranks", "cpus", "said"),
    [
        (3, 1.0, "3 ranks ask for 1 CPU each, but the cluster's 2 nodes have places for 2; take"),
        (1, 1.5, "1 ranks ask for 1.5 CPU each, but the cluster's 2 nodes have places for 0; take"),
    ],
)
def test_a_cpu_too_few_is_said_before_anything_is_made(
    tmp_path: Path, two_raylets: LocalRay, ranks: int, cpus: float, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        agentrl.train(
            ENV,
            runs_dir=str(tmp_path),
            executor="ray",
            ray={"address": two_raylets.address, "cpus": cpus},
            trainer={"ranks": ranks},
        )
    assert not is_joined()
    assert not list(tmp_path.iterdir())
