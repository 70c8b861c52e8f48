"""Evaluation: play held-out tasks with an engine or a scripted agent, and say how sure it is.

Success is pass@k with its 95 % interval.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentrl.config.nearest import nearest
from agentrl.config.references import load_reference
from agentrl.envs import EchoAgent, NullAgent, RandomAgent
from agentrl.errors import ConfigError
from agentrl.orchestration.config import EvalConfig
from agentrl.orchestration.env_mix import BoundEnv, eval_refs
from agentrl.rollout import Collected, episode_metrics, gather_groups, successes
from agentrl.types import Agent

if TYPE_CHECKING:
    from agentrl.orchestration.parts import Parts

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What an evaluation found."""

    split: str
    tasks: int
    episodes: int
    invalid: int
    too_long: int
    """Tasks left out, since their prompts leave no room for a turn."""
    no_text: int
    """Tasks left out, since no tokenizer takes their prompts."""
    pass_at: Mapping[int, Interval]
    """pass@k for k = 1, 2, 4, ... up to the number of samples; empty where no success is defined:
    scores other than 0 and 1, without a `success_at` of environment or verifier."""
    reward: float
    turns: float
    metrics: Mapping[str, float]

    @property
    def success(self) -> float | None:
        """pass@1, if a success is defined."""
        return self.pass_at[1].value if self.pass_at else None

    def to_json(self) -> dict[str, object]:
        """Plain values for `--json`."""
        plain: dict[str, object] = asdict(self)
        passes = {str(k): [i.value, i.low, i.high] for k, i in self.pass_at.items()}
        return plain | {"pass_at": passes}


async def evaluate(
    parts: "Parts", step: int, on_group: Callable[[int, int], None]
) -> tuple[EvalResult, Collected]:
    """Play the held-out tasks of a run, each as often as `eval.samples` says.

    The tasks are the same for every step of a run; seeds of the episodes differ by step. `on_group`
    gets how many groups have ended, and of how many.
    """
    config, seed = parts.config.eval, parts.config.seed
    refs = eval_refs(parts.envs, tasks=config.tasks, split=config.split, seed=seed)
    groups = parts.eval_collector.collect(
        parts.jobs.jobs(refs, config.split, step=step, purpose="eval"), group_size=config.samples
    )
    collected = await gather_groups(groups, lambda done: on_group(done, len(refs)))
    return summarise(collected, config), collected


def summarise(collected: Collected, config: EvalConfig) -> EvalResult:
    """pass@k with intervals, and the episode metrics."""
    plays = Counter(episode.group for episode in collected.episodes)
    metrics = episode_metrics(collected)
    return EvalResult(
        split=config.split,
        tasks=len(plays),
        episodes=len(collected.episodes),
        invalid=len(collected.invalid),
        too_long=len(collected.too_long),
        no_text=len(collected.no_text),
        pass_at=_compute_pass_at_k(collected, config.samples),
        reward=metrics.get("reward", 0.0),
        turns=metrics.get("turns", 0.0),
        metrics=metrics,
    )


def _compute_pass_at_k(collected: Collected, samples: int) -> dict[int, Interval]:
    found = successes(collected.episodes, collected.success_at)
    if found is None:
        return {}
    groups: dict[int, list[bool]] = {}
    for episode, success in zip(collected.episodes, found, strict=True):
        groups.setdefault(episode.group, []).append(success)
    counts = [(sum(groups[group]), len(groups[group])) for group in sorted(groups)]
    doubled = [2**i for i in range(samples.bit_length())]  # 1, 2, 4, ...
    return {k: pass_interval(counts, k) for k in sorted({*doubled, samples})}


def wilson(successes: float, trials: float) -> Interval:
    """The score interval of a proportion (Wilson 1927); [0, 1] without trials."""
    if trials == 0:
        return Interval(0.0, 0.0, 1.0)
    p, z2 = successes / trials, Z95 * Z95
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """The chance that k of the samples hold a success, unbiased (arXiv:2107.03374, eq. 1)."""
    if samples - successes < k:
        return 1.0
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def pass_interval(successes_per_task: Sequence[tuple[int, int]], k: int) -> Interval:
    """pass@k over tasks given as (successes, samples); those with fewer than k are left out.

    Samples of one task are alike, so they count as fewer: Wilson's interval for as many independent
    trials as have the variance seen between tasks, at least one per task.
    """
    usable = [(s, n) for s, n in successes_per_task if n >= k]
    if not usable:
        return wilson(0, 0)
    values = np.array([pass_at_k(s, n, k) for s, n in usable])
    mean, tasks = float(values.mean()), len(usable)
    most = sum(n for _, n in usable) / k
    variance = float(values.var(ddof=1)) / tasks if tasks > 1 else 0.0
    if mean in (0.0, 1.0):
        trials = float(tasks)
    else:
        trials = min(max(mean * (1 - mean) / max(variance, 1e-12), tasks), most)
    return wilson(mean * trials, trials)


def make_agent(name: str, envs: Sequence[BoundEnv], seed: int) -> Agent:
    """An agent for the environment by its name or reference.

    Raises:
        ConfigError: There is none, or there are several environments.
    """
    if len(envs) != 1:
        raise ConfigError(f"--agent {name}: got {len(envs)} environments, expected one")
    if ":" in name:
        found = load_reference(name, "agent")
        agent: object = found() if isinstance(found, type) else found
        if not isinstance(agent, Agent):
            raise ConfigError(f"agent {name} has no method act(view); name one that has")
        return agent
    env, expert = envs[0], envs[0].expert
    known: dict[str, Agent] = {
        **({} if expert is None else {"oracle": expert}),
        "null": NullAgent(),
        "echo": EchoAgent(),
        "random": RandomAgent(seed, env.prototype.tool_schemas),
        **env.env_class.agents(),
    }
    if name not in known:
        raise ConfigError(f"agent {name} is unknown for env {env.name}, {nearest(name, known)}")
    return known[name]
