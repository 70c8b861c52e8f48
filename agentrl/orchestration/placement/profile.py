"""`measure_costs`: what a run's work takes one device here, from a few episodes and an update."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Final

from agentrl.errors import ConfigError
from agentrl.orchestration.config import RolesConfig, RunConfig
from agentrl.orchestration.parts import Parts, build_parts
from agentrl.orchestration.placement.costs import StepCosts
from agentrl.orchestration.preflight import Plan
from agentrl.rollout import gather_groups, make_batch
from agentrl.rollout.sampler import task_stream
from agentrl.trainer.algorithms.normalisations import token_mean
from agentrl.trainer.config import KlConfig
from agentrl.types import Episode

_EPISODE_S: Final = 15.0
"""Most seconds of an episode: 3 rounds of them and 2 updates take 60 s at most."""
_TOGETHER: Final = 8
"""Episodes at once, beside one alone."""
_UPDATE_S: Final = 7.0
"""If the first update took longer, it is taken as it was, without a second one."""
_CPU_BYTES_PER_S: Final = 2e9


async def measure_costs(plan: Plan, folder: Path) -> StepCosts:
    """Play, train and publish on one device of this machine, with the model of `folder`.

    Raises:
        ConfigError: no episode had a turn.
    """
    plan = replace(plan, config=_on_one_device(plan.config))
    async with aclosing(await build_parts(plan, folder)) as parts:
        await _play_episodes(parts, 1)  # what is done once is done then
        alone = await _play_episodes(parts, 1)
        together = await _play_episodes(parts, _TOGETHER)
        played = [*alone, *together]
        if not any(turn.num_sampled for episode in played for turn in episode.turns):
            raise ConfigError("--placement: no episode of the profile had a turn; write [pools]")
        one, many = _token_seconds(alone) or _token_seconds(together), _token_seconds(together)
        row_s = max(0.0, (many - one) / (_TOGETHER - 1))
        batch = make_batch(played, temperature=1.0)
        batch = replace(batch, weights_N=token_mean(batch))
        update_s = parts.trainer.supervised_update(batch).seconds
        if update_s < _UPDATE_S:  # in the first one memory is taken
            update_s = parts.trainer.supervised_update(batch).seconds
        started = time.perf_counter()
        weights = parts.trainer.weights()
        await parts.engine.update_weights(weights, 1)
        speeds = {"link_bytes_per_s": _CPU_BYTES_PER_S, "net_bytes_per_s": _CPU_BYTES_PER_S / 2}
        return StepCosts(
            turns=[len(episode.turns) for episode in played if episode.turns],
            tokens=[turn.num_sampled for episode in played for turn in episode.turns],
            answers_s=[turn.environment_s for episode in played for turn in episode.turns],
            row_tokens=len(batch.ids_N) / len(played),
            decode_s=max(1e-9, one - row_s),
            decode_row_s=row_s,
            forward_s=update_s / len(batch.ids_N) / 3,
            weight_bytes=sum(tensor.nbytes for _, tensor in weights.named_tensors()),
            token_budget=plan.config.trainer.token_budget,
            publish_s=time.perf_counter() - started,
            **(speeds if plan.config.trainer.device == "cpu" else {}),
        )


async def _play_episodes(parts: Parts, num: int) -> Sequence[Episode]:
    """So many at once, of tasks that the run has; those that failed are left out."""
    sources = [env.source() for env in parts.envs]
    refs = next(task_stream(sources, tasks_per_step=num, seed=parts.config.seed))
    jobs = parts.jobs.jobs(refs, "train", step=0)
    return (await gather_groups(parts.collector.collect(jobs, group_size=1))).episodes


def _token_seconds(episodes: Sequence[Episode]) -> float:
    """Of a sampled token, in the mean; 0 if there is none."""
    turns = [turn for episode in episodes for turn in episode.turns]
    num = sum(turn.num_sampled for turn in turns)
    return sum(turn.generate_s for turn in turns) / num if num else 0.0


def _on_one_device(config: RunConfig) -> RunConfig:
    """The run without pools, with one rank and a server of one device."""
    alone: dict[str, object] = {
        "ranks": 1,
        "replicate": 1,
        "sequence_parallel": 1,
        "executor": None,
    }
    # A supervised update asks neither critic nor reference, whose passes are counted from it.
    alone |= {"algorithm": "grpo", "reference": "", "kl": KlConfig()}
    one = {"tp_size": 1, "dp_size": 1}
    servers = {n: getattr(config.engine, n).model_copy(update=one) for n in ("sglang", "vllm")}
    return config.model_copy(
        update={
            "pools": {},
            "roles": RolesConfig(),
            "trainer": config.trainer.model_copy(update=alone),
            "engine": config.engine.model_copy(update=servers),
            "rollout": config.rollout.model_copy(update={"wall_s": _EPISODE_S}),
        }
    )
