"""Which placements there are, what they take, and which one is chosen."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.orchestration.config import Role
from agentrl.orchestration.placement.costs import StepCosts
from agentrl.orchestration.placement.pools import Placement, Pool
from agentrl.orchestration.placement.search import (
    enumerate_placements,
    partitions,
    play_placement,
    rank_placements,
    share_devices,
)
from agentrl.schedule import Schedule

ROLES: tuple[Role, ...] = ("actor", "rollout", "critic", "reference")
COSTS = StepCosts(
    turns=(1, 2, 3),
    tokens=(10, 20, 40),
    answers_s=(0.1, 0.5),
    row_tokens=100.0,
    decode_s=0.01,
    decode_row_s=0.002,
    forward_s=0.001,
    weight_bytes=10_000_000,
)
SCHEDULE = Schedule(groups_per_step=2, members=4, steps=1)


def place(*pools: tuple[str, int], tp: int = 1) -> Placement:
    made = [
        Pool(name=roles, kind="gpu", count=count, roles=tuple(r for r in ROLES if r in roles))
        for roles, count in pools
    ]
    return Placement(pools=tuple(made), tp=tp)


@pytest.mark.parametrize(("num", "ways"), [(1, 1), (2, 2), (3, 5), (4, 15)])
def test_roles_can_be_put_together_in_so_many_ways(num: int, ways: int) -> None:
    found = {frozenset(frozenset(block) for block in blocks) for blocks in partitions(ROLES[:num])}
    assert len(found) == len(list(partitions(ROLES[:num]))) == ways


@given(st.integers(1, 12), st.integers(1, 4))
def test_within_a_node_every_share_of_the_devices_is_there_once(devices: int, parts: int) -> None:
    shares = list(share_devices(devices, parts, node=devices))
    every = product(range(1, devices + 1), repeat=parts)
    assert sorted(shares) == sorted(one for one in every if sum(one) == devices)


@given(st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=20)
def test_over_nodes_large_pools_have_whole_ones(nodes: int, parts: int) -> None:
    for share in share_devices(8 * nodes, parts, node=8):
        assert sum(share) == 8 * nodes
        assert all(n <= 8 or n % 8 == 0 for n in share)


def test_a_server_fills_a_part_of_its_pool() -> None:
    made = list(enumerate_placements(ROLES[:2], 4, node=2, kind="gpu", tp_sizes=(1, 2, 4)))
    assert {(p.pools[0].count, p.tp) for p in made if len(p.pools) == 1} == {(4, 1), (4, 2)}
    assert all((p.pool_of("rollout") or p.pools[0]).count in (1, 2, 4) for p in made)


def test_roles_of_a_pool_work_one_after_the_other() -> None:
    """8 rows of 100 tokens, 1 ms a pass and token; transfers do not count here."""
    costs = replace(COSTS, link_bytes_per_s=1e12, token_budget=1_000_000)
    # Critic and reference read, then actor and critic are updated: 2 + 6 passes of 0.8 s.
    assert costs.update_s(place(("actor rollout critic reference", 1)), 800, 8) == pytest.approx(
        (6.4, 6.4)
    )
    apart = place(("actor", 1), ("rollout", 1), ("critic", 1), ("reference", 1))
    assert costs.update_s(apart, 800, 8) == pytest.approx((3.2, 0.0))
    beside = place(("actor", 2), ("rollout reference", 1), ("critic", 2))
    # The reference takes 0.8 s, the critic 0.4 meanwhile; then both updates take 1.2 s.
    assert costs.update_s(beside, 800, 8) == pytest.approx((2.0, 0.8))


def test_moving_weights_bounds_what_more_devices_bring() -> None:
    costs = replace(COSTS, link_bytes_per_s=1e9, net_bytes_per_s=1e8)
    assert costs.pass_s(1.0, 800, 8, node=8) == pytest.approx(0.1)
    assert costs.pass_s(1.0, 800, 800, node=800) == pytest.approx(0.01 * 799 / 800)
    assert costs.pass_s(1.0, 800, 800, node=8) == pytest.approx(0.1 * 799 / 800)


def test_a_server_shares_its_time() -> None:
    assert COSTS.token_s(1.0, 1) == pytest.approx(0.012)
    assert COSTS.token_s(5.0, 1) == pytest.approx(0.02)
    assert replace(COSTS, sync_s=0.001).token_s(5.0, 2) == pytest.approx(0.011)
    work = COSTS.workload(place(("actor", 2), ("rollout", 2)), SCHEDULE, 8)
    assert work.slowdown is not None
    assert work.slowdown(2) == pytest.approx(1.0)  # one on each server
    assert work.slowdown(10) == pytest.approx(0.02 / 0.012)


@given(
    st.sampled_from([0, 1]),
    st.floats(1e-4, 1e-2),
    st.floats(1e-5, 3e-3),
    st.integers(0, 10**9),
)
@settings(max_examples=8)
def test_the_choice_is_near_the_best_of_all(
    staleness: int, decode_s: float, forward_s: float, weight_bytes: int
) -> None:
    costs = replace(COSTS, decode_s=decode_s, forward_s=forward_s, weight_bytes=weight_bytes)
    schedule = replace(SCHEDULE, staleness=staleness)
    made = list(enumerate_placements(ROLES[:3], 4, node=4, kind="gpu", tp_sizes=(1, 2)))
    every = [play_placement(one, costs, schedule, node=4, seed=1, steps=12).step_s for one in made]
    chosen = rank_placements(made, costs, schedule, node=4)[0].placement
    long = play_placement(chosen, costs, schedule, node=4, seed=1, steps=12).step_s
    assert long <= 1.05 * min(every)


def test_no_step_is_shorter_than_its_bound() -> None:
    for staleness, tp in product((0, 1), (1, 2)):
        schedule = replace(SCHEDULE, staleness=staleness)
        for placement in (place(("actor rollout", 2), tp=tp), place(("actor", 2), ("rollout", 2))):
            played = play_placement(placement, COSTS, schedule, node=8, steps=60)
            assert played.step_s > 0.95 * COSTS.least_s(placement, schedule, 8)
