"""Evaluation: play held-out tasks with an engine; no trainer is needed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.orchestration.config import EvalConfig
from agentrl.orchestration.env_mix import BoundEnv, JobMaker, eval_refs
from agentrl.orchestration.intervals import Interval, pass_interval
from agentrl.rollout import Collected, Collector, episode_metrics, successes
from agentrl.types import Episode


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
        passes = {str(k): [i.value, i.low, i.high] for k, i in self.pass_at.items()}
        return {
            "split": self.split,
            "tasks": self.tasks,
            "episodes": self.episodes,
            "invalid": self.invalid,
            "too_long": self.too_long,
            "no_text": self.no_text,
            "pass_at": passes,
            "reward": self.reward,
            "turns": self.turns,
            "metrics": dict(self.metrics),
        }


async def evaluate(
    *,
    collector: Collector,
    jobs: JobMaker,
    envs: Sequence[BoundEnv],
    config: EvalConfig,
    seed: int,
    step: int,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> tuple[EvalResult, Collected]:
    """Play `config.tasks` tasks of the split, each `config.samples` times.

    The tasks are the same for every step of a run; seeds of the episodes differ by step.
    """
    refs = eval_refs(envs, tasks=config.tasks, split=config.split, seed=seed)
    collected = await collector.collect(
        jobs.jobs(refs, config.split),
        group_size=config.samples,
        seed=seed,
        step=step,
        purpose="eval",
        on_episode=on_episode,
    )
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
        pass_at=_pass_at(collected, config.samples),
        reward=metrics.get("reward", 0.0),
        turns=metrics.get("turns", 0.0),
        metrics=metrics,
    )


def _pass_at(collected: Collected, samples: int) -> dict[int, Interval]:
    found = successes(collected.episodes, collected.success_at)
    if found is None:
        return {}
    groups: dict[int, list[bool]] = {}
    for episode, success in zip(collected.episodes, found, strict=True):
        groups.setdefault(episode.group, []).append(success)
    counts = [(sum(groups[group]), len(groups[group])) for group in sorted(groups)]
    return {k: pass_interval(counts, k) for k in _ks(samples)}


def _ks(samples: int) -> list[int]:
    ks = [1]
    while ks[-1] * 2 <= samples:
        ks.append(ks[-1] * 2)
    return ks if ks[-1] == samples else [*ks, samples]
