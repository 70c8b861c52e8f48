"""The bytes of each device of a placement."""

from agentrl.config import Loaded
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.placement.bill import Bill, make_bill
from agentrl.orchestration.placement.machines import MachineNode, MachineRoom
from agentrl.orchestration.placement.pools import read_placement

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
