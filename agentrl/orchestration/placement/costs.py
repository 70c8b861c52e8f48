"""`StepCosts`: what a step takes on a placement, from what its work takes one device.

    generation  a sampled token of b sequences on a server of t devices takes
                (decode_s + b * decode_row_s) / t + sync_s if t > 1
    training    a pass over K tokens on n devices takes the longer of K * seconds / n and of moving
                the weights, once for each micro-batch; roles of one pool come one after the other
    weights     go over the link of a node, or the network if trainer and servers share none

docs/scaling.md derives them. Rows are taken to be balanced, and transfers to hide behind passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from agentrl.orchestration.config import Role
from agentrl.orchestration.placement.pools import Placement
from agentrl.schedule import Schedule
from agentrl.testing.virtual_clock import Workload

_FIRST: Final[dict[Role, float]] = {"critic": 1.0, "reference": 1.0, "reward": 1.0}
"""Passes forward that each role makes of a batch before the update."""
_UPDATE: Final[dict[Role, float]] = {"actor": 3.0, "critic": 3.0}
"""Those of the update, where a pass back counts two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """A profile: times in seconds on one device, lengths as they were met."""

    turns: Sequence[int]
    """Of episodes."""
    tokens: Sequence[int]
    """Sampled in turns."""
    answers_s: Sequence[float]
    """Of environments to turns."""
    row_tokens: float
    """Of an episode, all trained or read."""
    decode_s: float
    """Of a sampled token: what one sequence or many need once."""
    decode_row_s: float
    """Of each sequence, with its share of new prompt tokens."""
    forward_s: float
    """Of a token, in a pass forward."""
    weight_bytes: int
    token_budget: int = 4096
    sync_s: float = 0.0
    """Of a sampled token, for exchanges between a server's devices."""
    publish_s: float = 0.0
    """Of new weights, however they come."""
    link_bytes_per_s: float = 50e9
    """Between devices of a node."""
    net_bytes_per_s: float = 12.5e9
    """Between nodes, of each."""

    def token_s(self, sequences: float, tp: int) -> float:
        """Of a sampled token of each of so many sequences on a server."""
        work = self.decode_s + sequences * self.decode_row_s
        return work / tp + self.sync_s * (tp > 1)

    def pass_s(self, passes: float, tokens: float, devices: int, node: int) -> float:
        """Of so many passes over tokens, shared by devices of nodes of so many."""
        speed = self.link_bytes_per_s if devices <= node else self.net_bytes_per_s
        micro = -(-tokens // (devices * self.token_budget))
        moved = self.weight_bytes * (devices - 1) / devices * micro / speed
        return passes * max(tokens * self.forward_s / devices, moved)

    def update_s(self, placement: Placement, tokens: float, node: int) -> tuple[float, float]:
        """Of an update, and of the part in which the servers' devices are the trainer's.

        Pools work at the same time: first what reads the batch, then what is updated.
        """
        total = stands = 0.0
        for passes in (_FIRST, _UPDATE):
            busy = {
                pool.roles: self.pass_s(
                    sum(passes.get(role, 0.0) for role in pool.roles), tokens, pool.count or 1, node
                )
                for pool in placement.pools
            }
            total += max(busy.values())
            stands += next((s for roles, s in busy.items() if "rollout" in roles), 0.0)
        return total, stands

    def workload(self, placement: Placement, schedule: Schedule, node: int) -> Workload:
        """What the virtual clock plays; a node has so many devices."""
        rollout = placement.pool_of("rollout")
        servers = (rollout.count or 1) // placement.tp if rollout is not None else 1
        alone = self.token_s(1.0, placement.tp)
        episodes = schedule.groups_per_step * schedule.members
        train_s, stands_s = self.update_s(placement, episodes * self.row_tokens, node)
        is_near = sum(pool.count or 0 for pool in placement.pools) <= node
        speed = self.link_bytes_per_s if is_near else self.net_bytes_per_s
        return Workload(
            num_turns=lambda rng: rng.choice(self.turns),
            turn_s=lambda rng: rng.choice(self.tokens) * alone,
            environment_s=lambda rng: rng.choice(self.answers_s),
            slowdown=lambda n: self.token_s(max(1.0, n / servers), placement.tp) / alone,
            train_s=train_s,
            stands_s=stands_s,
            publish_s=self.publish_s + self.weight_bytes / speed,
        )

    def least_s(self, placement: Placement, schedule: Schedule, node: int) -> float:
        """Seconds that no step can be shorter than in the mean, by the sums alone."""
        work = self.workload(placement, schedule, node)
        assert work.slowdown is not None, "made above"
        episodes = schedule.groups_per_step * schedule.members
        most = schedule.outstanding * schedule.members
        if isinstance(schedule.concurrency, int):
            most = min(most, schedule.concurrency)
        turn_s = mean(self.tokens) * self.token_s(1.0, placement.tp)
        turns = mean(self.turns)
        sampling_s = episodes * turns * turn_s * work.slowdown(most) / most
        if schedule.staleness:
            trainer_s, engine_s = work.train_s, sampling_s + work.stands_s
            return max(trainer_s, engine_s) + work.publish_s
        episode_s = turns * (turn_s + mean(self.answers_s))
        return max(sampling_s, episode_s) + work.train_s + work.publish_s
