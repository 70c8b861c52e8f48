"""What `[pools]` and `[roles]` say, and what of it there is too little of."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.executors import place_roles
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.placement.machines import (
    MachineNode,
    MachineRoom,
    missing_devices,
    parse_machines,
)
from agentrl.orchestration.placement.pools import Placement, Pool, parse_pool, read_placement

TOGETHER: dict[str, object] = {
    "pools": {"all": "2 x cpu"},
    "roles.actor": "all",
    "roles.rollout": "all",
}
APART: dict[str, object] = {"pools": {"all": "2 x cpu", "b": "3 x cpu"}}
CRITIC_APART = APART | {"trainer.algorithm": "ppo", "roles.critic": "b"}
EXACT_APART = APART | {
    "trainer.kl.coef": 0.1,
    "trainer.kl.kind": "exact",
    "roles.reference": "b",
}
SPLIT: dict[str, object] = {
    "pools": {"train": "6 x gpu", "serve": "4 x gpu", "cpu": "*"},
    "roles.actor": "train",
    "roles.rollout": "serve",
    "roles.environment": "cpu",
    "engine.kind": "sglang",
    "engine.sglang.tp_size": 2,
}


def load(keys: Mapping[str, object]) -> RunConfig:
    nested: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return load_run_config(flags=["--env", "calculator"], keywords=nested).config


def read(keys: Mapping[str, object]) -> Placement:
    placement = read_placement(load(keys))
    assert placement is not None
    return placement


@given(st.integers(1, 999_999), st.sampled_from(["gpu", "cpu"]), st.text(" ", max_size=2))
def test_a_pool_is_a_number_and_a_kind(count: int, kind: str, space: str) -> None:
    pool = parse_pool("a", f"{count}{space}x{space}{kind}")
    assert (pool.count, pool.kind) == (count, kind)
    assert parse_pool("a", pool.text) == pool


@given(st.text(max_size=12))
def test_any_other_text_is_refused_in_a_sentence(text: str) -> None:
    try:
        pool = parse_pool("a", text)
    except ConfigError:
        with pytest.raises(ConfigError, match=r"\Apools\.a: got [^\n]*\Z"):
            parse_pool("a", text)
    else:
        assert parse_pool("a", pool.text) == pool


def test_pools_settle_ranks_devices_and_servers() -> None:
    config = load(SPLIT)
    assert (config.trainer.ranks, config.trainer.device) == (6, "auto")
    assert config.engine.sglang.dp_size == 2
    placement = read(SPLIT)
    assert placement.tp == 2
    assert placement.pool_of("environment") == Pool(
        name="cpu", kind="cpu", count=None, roles=("environment",)
    )


def test_a_server_by_its_address_has_no_pool() -> None:
    url = {"engine.sglang.url": "http://127.0.0.1:1"}
    alone: dict[str, object] = {"pools": {"train": "1 x cpu"}, "roles.actor": "train"}
    assert read(alone | url).pool_of("rollout") is None
    with pytest.raises(ConfigError, match=r"roles.rollout: got train, but this run has no rollout"):
        read(alone | url | {"roles.rollout": "train"})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pools": {"all": "two"}}, r"pools\.all: got 'two', expected a number and a kind"),
        ({"pools": {"all": "0 x cpu"}}, r"pools\.all: got '0 x cpu', expected 1 device at least"),
        ({"pools": {"all": "*"}}, r"pools\.all: got \*, expected a number"),
        ({"roles.actor": "al"}, r"roles\.actor: there is no pool al, did you mean all\?"),
        ({"roles.rollout": None}, r"roles\.rollout: has no pool, but the run has that role"),
        ({"roles.critic": "all"}, r"roles\.critic: got all, but this run has no critic"),
        ({"trainer.algorithm": "ppo"}, r"roles\.critic: has no pool"),
        (CRITIC_APART | {"trainer.executor": "inline"}, r"roles\.critic: got b, apart .*inline"),
        (CRITIC_APART | {"trainer.lora.rank": 4}, r"roles\.critic: got b, .* trainer\.lora"),
        (
            CRITIC_APART | {"pools": {"all": "2 x cpu", "b": "1 x gpu"}},
            r"roles\.critic: .*take ray",
        ),
        (
            EXACT_APART,
            r"roles\.reference: got b, apart from the actor, but trainer\.kl\.kind exact",
        ),
        ({"pools": {"all": "2 x cpu", "b": "1 x cpu"}}, r"pools\.b: no role is in it"),
        ({"pools": {}}, r"roles\.actor: got all, but there are no pools"),
        ({"trainer.ranks": 3}, r"trainer\.ranks: got 3, but the actor's pool all has 2 x cpu"),
        ({"trainer.device": "auto"}, r"trainer\.device: got auto, but the actor's pool all has"),
        ({"pools": {"all": "2 x gpu"}}, r"roles\.rollout: got all, but engine local samples with"),
    ],
)
def test_what_is_wrong_is_one_sentence(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(TOGETHER | changed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"engine.sglang.tp_size": 3}, r"tp_size: got 3, but pool serve has 4 x gpu"),
        ({"engine.sglang.dp_size": 4}, r"dp_size: got 4, but pool serve has 4 x gpu and each"),
        ({"roles.environment": "serve"}, r"roles\.environment: got serve, whose devices are GPUs"),
    ],
)
def test_servers_fill_their_pool(changed: dict[str, object], said: str) -> None:
    pools = {"pools": {"train": "6 x gpu", "serve": "4 x gpu"}}
    keys = {key: value for key, value in SPLIT.items() if key != "roles.environment"}
    with pytest.raises(ConfigError, match=said):
        read(keys | pools | changed)


def test_a_cpu_too_few_is_said_with_what_would_fit() -> None:
    config = load(TOGETHER)
    placement = read(TOGETHER)
    assert missing_devices(config, placement, MachineRoom((MachineNode(cpus=2),))) == []
    assert missing_devices(config, placement, MachineRoom((MachineNode(cpus=1),))) == [
        'pools: got 2 CPU (all 2), but there are 1 (1 node with 1 CPU); all = "1 x cpu" would fit'
    ]


def test_ranks_on_ray_ask_for_cpus_beside_their_gpus() -> None:
    config = load({**SPLIT, "trainer.executor": "ray", "ray.cpus": 2.5})
    room = MachineRoom((MachineNode(cpus=14, gpus=10),))
    (said,) = missing_devices(config, read(SPLIT), room)
    assert said.startswith("pools: got 15 CPU (ranks 15 for ray.cpus), but there are 14")


def test_a_server_is_on_one_node() -> None:
    room = parse_machines("10 nodes, 8 cpu, 1 gpu", "80GB")
    assert room.count("gpu") == 10
    assert room.device_bytes("gpu") == 80 * 10**9
    (said,) = missing_devices(load(SPLIT), read(SPLIT), room)
    assert said.startswith("engine.sglang.tp_size: got 2, but a server is on one node")


@pytest.mark.parametrize("text", ["", "8", "8 gpu", "2 cpu, 3 cpu", "0 nodes, 2 cpu", "2 x cpu"])
def test_machines_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--cluster: got"):
        parse_machines(text)


def test_a_critic_in_a_pool_of_its_own_has_a_rank_for_each_device() -> None:
    config = load(TOGETHER | CRITIC_APART)
    assert config.trainer.executor == "processes"
    places = place_roles(config)
    assert {role: (place.ranks, place.device) for role, place in places.items()} == {
        "critic": (3, "cpu")
    }
    together = load(TOGETHER | {"trainer.algorithm": "ppo", "roles.critic": "all"})
    assert together.trainer.executor is None
    assert place_roles(together) == {}
