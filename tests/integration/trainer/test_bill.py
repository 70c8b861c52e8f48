"""The bytes of each device of a placement."""

import pytest

from agentrl.config import Loaded
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.placement.bill import Bill, make_bill
from agentrl.orchestration.placement.choose import choose_placement
from agentrl.orchestration.placement.machines import MachineNode, MachineRoom
from agentrl.orchestration.placement.pools import read_placement
from agentrl.orchestration.preflight import make_plan

ROOM = MachineRoom((MachineNode(cpus=8, memory_bytes=8 << 30),))


def bill_of(loaded: Loaded[RunConfig], room: MachineRoom = ROOM) -> Bill:
    placement = read_placement(loaded.config)
    assert placement is not None
    return make_bill(loaded.config, placement, room)


def load(*flags: str) -> Loaded[RunConfig]:
    return load_run_config(flags=["--env", "calculator", *flags])


def test_each_pool_holds_what_its_roles_need() -> None:
    together = ["--pools", '{all = "1 x cpu"}', "--roles.actor", "all", "--roles.rollout", "all"]
    split = ["--pools", '{a = "1 x cpu", b = "2 x cpu"}', "--roles.actor", "a"]
    split += ["--roles.rollout", "b"]
    one, two = (bill_of(load(*flags)).parts for flags in (together, split))
    assert {*two["b"]} == {"engine weights", "cache"}
    assert not {"engine weights", "cache"} & {*two["a"]}
    assert two["a"]["weights"] == one["all"]["weights"]
    # Colocated, a local engine samples with the trainer's weights; two servers share the rows.
    assert one["all"]["engine weights"] == 0 < two["b"]["engine weights"]
    assert two["b"]["cache"] == one["all"]["cache"] // 2


def test_ranks_share_the_weights() -> None:
    flags = ["--roles.actor", "a", "--roles.rollout", "a"]
    one, four = (
        bill_of(load("--pools", f'{{a = "{n} x cpu"}}', *flags)).parts["a"] for n in (1, 4)
    )
    assert four["optimizer"] == one["optimizer"] // 4


def test_what_does_not_fit_is_said_with_what_would() -> None:
    flags = ["--pools", '{a = "1 x cpu"}', "--roles.actor", "a", "--roles.rollout", "a"]
    needs = sum(bill_of(load(*flags)).parts["a"].values())
    small = MachineRoom((MachineNode(cpus=8, memory_bytes=8 * int(needs * 1.04)),))
    (said,) = bill_of(load(*flags), small).missing
    assert said.startswith("pools.a: actor, rollout need ")
    assert said.endswith('a = "2 x cpu" would fit')
    smaller = MachineRoom((MachineNode(cpus=1, memory_bytes=int(needs * 1.04)),))
    (said,) = bill_of(load(*flags), smaller).missing
    assert "it would fit with --trainer.activation-checkpointing true" in said


def test_auto_measures_and_takes_the_fastest_that_runs_and_fits() -> None:
    loaded = load("--rollout.max-new-tokens", "8", "--threads", "1")
    choice = choose_placement(make_plan(loaded.config), MachineRoom((MachineNode(cpus=3),)))
    # The 2 partitions have 1 and 2 ways to share 3 CPUs.
    assert (choice.num_made, choice.num_cannot_run, choice.num_too_large) == (3, 0, 0)
    best = choice.ranked[0]
    assert best.step_s == min(one.step_s for one in choice.ranked) > 0.0
    chosen = load_run_config(flags=["--env", "calculator"], keywords=choice.keys("local")).config
    placement = read_placement(chosen)
    assert placement is not None
    assert {pool.roles for pool in placement.pools} == {p.roles for p in best.placement.pools}
    assert chosen.trainer.ranks == getattr(best.placement.pool_of("actor"), "count", 0)


def test_auto_says_before_it_measures_that_nothing_fits() -> None:
    small = MachineRoom((MachineNode(cpus=2, memory_bytes=1 << 20),))
    with pytest.raises(ConfigError, match="of 2 placements of actor, rollout on 1 node with 2 CPU"):
        choose_placement(make_plan(load().config), small)
