"""From configuration to environments: names resolved, parameters checked, one instance tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import cast

import numpy as np

from agentrl.config.load import parse_params
from agentrl.envs import EnvServices, ToolEnv, resolve_env
from agentrl.envs.context import resolve_context
from agentrl.envs.tasks import TaskSource
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.rollout import EnvSource, GroupJob, TaskRef, derive_seed
from agentrl.rollout.player import EnvMaker
from agentrl.tokens import Tokenizer
from agentrl.tools import user_code
from agentrl.types import Agent, EpisodeKey, Purpose, Task
from agentrl.verifiers import resolve_verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundEnv(EnvMaker):
    """An environment class with its parameters; makes tasks and instances."""

    weight: float
    prototype: ToolEnv
    """An instance that plays no episode; it knows the tools."""
    tasks: TaskSource
    """As their files were when the run began."""

    def make(self, services: EnvServices, tokenizer: Tokenizer | None) -> ToolEnv:
        """A fresh instance."""
        return self.make_like(self.prototype, services, tokenizer)

    @property
    def maker(self) -> EnvMaker:
        """What makes instances in another process."""
        return EnvMaker(**{f.name: getattr(self, f.name) for f in fields(EnvMaker)})

    @property
    def expert(self) -> Agent | None:
        """The scripted expert of the environment, if it has one."""
        with user_code("expert"):
            return self.env_class.expert()

    def task(self, index: int, split: str, seed: int) -> Task:
        """Task number `index` of a split."""
        return self.tasks.task(index, split, seed)

    def listed_tasks(self, split: str) -> Sequence[Task] | None:
        """All tasks of a split, where they have an end."""
        return self.tasks.listed(split)

    def source(self, split: str = "train") -> EnvSource:
        """What the task sampler needs to know."""
        listed = self.listed_tasks(split)
        return EnvSource(weight=self.weight, num_tasks=None if listed is None else len(listed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a caller in Python gives as objects, where a configuration has names."""

    given: Mapping[str, object] = field(default_factory=dict[str, object])
    """By the text that stands for it in the configuration."""

    def env_class(self, name: str) -> type[ToolEnv]:
        """The class that a configuration's name stands for."""
        return resolve_env(cast("type[ToolEnv]", self.given.get(name, name)))

    def get(self, text: str | None) -> object:
        """The object that a text stands for; None if it stands for none."""
        return self.given.get(text or "")


NO_OBJECTS = Overrides()


def bind_envs(config: RunConfig, objects: Overrides) -> tuple[BoundEnv, ...]:
    """Resolve and check all environments of a run.

    Raises:
        ConfigError: none is given, one cannot be imported, or its parameters do not fit.
    """
    if not config.env:
        raise ConfigError("no environment is given: pass --env NAME or an [[env]] table")
    verifier = None
    if config.verifier is not None:
        verifier = resolve_verifier(objects.get(config.verifier) or config.verifier)
    context = resolve_context(config.context)
    names_by_label: dict[str, set[str]] = {}
    for entry in config.env:
        names_by_label.setdefault(entry.label, set()).add(entry.name)
    bound: list[BoundEnv] = []
    for entry in config.env:
        name = entry.label if len(names_by_label[entry.label]) == 1 else entry.name
        env_class = objects.env_class(entry.name)
        parameters = parse_params(env_class.Config, entry.params, where="env")
        with user_code(f"making env {name}"):
            prototype = env_class(parameters, verifier=verifier)
        bound.append(
            BoundEnv(
                name=name,
                env_class=env_class,
                config=parameters,
                prototype=prototype,
                tasks=env_class.task_source(parameters),
                weight=entry.weight,
                verifier=verifier,
                max_turns=config.rollout.max_turns,
                context=context,
            )
        )
    return tuple(bound)


class JobMaker:
    """Turns task references into jobs."""

    def __init__(
        self,
        envs: Sequence[BoundEnv],
        *,
        services: EnvServices,
        tokenizer: Tokenizer,
        seed: int,
    ) -> None:
        self._envs = envs
        self._services = services
        self._tokenizer = tokenizer
        self._seed = seed

    def jobs(
        self,
        refs: Sequence[TaskRef],
        split: str,
        *,
        step: int,
        purpose: Purpose = "train",
        run: int | None = None,
    ) -> list[GroupJob]:
        """One job per reference; `run` is the seed of their keys, by default the run's."""
        return [
            self.job(ref, split, step=step, place=i, purpose=purpose, run=run)
            for i, ref in enumerate(refs)
        ]

    def job(
        self,
        ref: TaskRef,
        split: str,
        *,
        step: int,
        place: int,
        purpose: Purpose = "train",
        run: int | None = None,
    ) -> GroupJob:
        """The job at a place of a step."""
        env, run = self._envs[ref.env], self._seed if run is None else run
        return GroupJob(
            key=EpisodeKey.first(run=run, step=step, place=place, purpose=purpose),
            env=env.name,
            make_env=lambda: env.make(self._services, self._tokenizer),
            task=env.task(ref.index, split, self._seed),
            split=split,
            success_at=env.prototype.success_at,
            place=ref.env,
        )


def eval_refs(envs: Sequence[BoundEnv], *, tasks: int, split: str, seed: int) -> list[TaskRef]:
    """`tasks` references spread over the environments by weight; finite sets without repetition.

    Each environment has one at least, as far as there are enough.
    """
    shares = spread([env.weight for env in envs], tasks)
    refs: list[TaskRef] = []
    for i, (env, share) in enumerate(zip(envs, shares, strict=True)):
        available = env.source(split).num_tasks
        if available is None:
            refs += [TaskRef(i, index) for index in range(share)]
            continue
        rng = np.random.default_rng(derive_seed(seed, "eval", i))
        chosen = rng.permutation(available)[:share]
        refs += [TaskRef(i, int(index)) for index in chosen]
    return refs


def spread(weights: Sequence[float], total: int) -> list[int]:
    """`total` dealt out one by one: to whoever has none yet, else to whoever is furthest behind."""
    shares = [0] * len(weights)
    for dealt in range(1, total + 1):
        wanted = [w / sum(weights) * dealt for w in weights]
        behind = [(shares[i] == 0, wanted[i] - shares[i]) for i in range(len(weights))]
        shares[behind.index(max(behind))] += 1
    return shares
