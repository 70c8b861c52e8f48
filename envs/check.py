"""Is this environment fit for training? What `agentrl env check` finds out, without a model.

Scripted agents play the same tasks; what they leave behind, what they get and whether it is the
same the second time tells most of what goes wrong with environments.
"""

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import psutil
from gymnasium.utils.env_checker import check_env

from agentrl.aio import run
from agentrl.boundary import one_line
from agentrl.config import Config
from agentrl.envs.agents import EchoAgent, NullAgent, RandomAgent
from agentrl.envs.declaration import declaration
from agentrl.envs.tasks import SPLITS
from agentrl.envs.toolenv import ToolEnv
from agentrl.errors import ConfigError, EpisodeError
from agentrl.tokens import Renderer, Tokenizer
from agentrl.tokens.time_limit import template_time_limit
from agentrl.tools import user_code
from agentrl.types import Agent, Invalid, Message, Outcome, Score, Task, ToolSchema

_NUM_MADE = 64
"""So many tasks of a split are compared with the other's, where they are made one by one."""
_NUM_LONG = 16
"""So many of the longest listed tasks are rendered beside those that are played."""
_WORKER_S = 60.0
"""So long a process for isolated tools may take to start."""
_GYMNASIUM_FAILURES = (AssertionError, Warning, EpisodeError, gymnasium.error.Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All that was looked at."""

    env: str
    rows: tuple[CheckRow, ...]
    schemas: tuple[ToolSchema, ...]
    """The tools as the model sees them."""

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return all(row.ok for row in self.rows)

    def lines(self) -> list[str]:
        """The table as plain text, a line for each row, which a long detail does not fit in."""
        width = max(len(row.name) for row in self.rows)
        return [
            f"{'ok  ' if row.ok else 'FAIL'} {row.name:<{width}}  {one_line(row.detail)}"
            for row in self.rows
        ]


Finding = tuple[bool, str]
"""Whether it is well, and what was seen."""


@dataclass(slots=True)
class Played:
    """One episode of an agent."""

    messages: tuple[Message, ...]
    outcome: Outcome
    rewards: list[float] = field(default_factory=list[float])
    reset_s: float = 0.0
    step_s: list[float] = field(default_factory=list[float])
    parts: set[str] = field(default_factory=set[str])
    """The names of those that its rewards and its score had."""

    @property
    def value(self) -> float:
        """Its return; an invalid one has none."""
        return sum(self.rewards) + (self.outcome.value if isinstance(self.outcome, Score) else 0.0)


def check_env_class(
    env_class: type[ToolEnv],
    *,
    config: Config | Mapping[str, Any] | None = None,
    verifier: object | None = None,
    tokenizer: Tokenizer | None = None,
    limit: int | None = None,
    split: str = "train",
    num_tasks: int = 8,
) -> CheckReport:
    """Let scripted agents play and report what was seen.

    Args:
        env_class: the environment.
        config: its parameters.
        verifier: scores instead of the environment's own verifier or score.
        tokenizer: counts the prompt in tokens; without one it is counted in characters.
        limit: a prompt of so many tokens leaves no room for a turn.
        split: where the tasks come from.
        num_tasks: how many each agent plays.

    Raises:
        ConfigError: What the class declares is wrong.
    """
    env = env_class(config, verifier=verifier, tokenizer=tokenizer)
    tasks = [env_class.task_at(i, split=split, seed=0, config=env.config) for i in range(num_tasks)]
    again = [env_class.task_at(i, split=split, seed=0, config=env.config) for i in range(num_tasks)]
    listed = sorted(env_class.listed_tasks(split, env.config) or (), key=_count_prompt_characters)
    tools = ", ".join(schema.name for schema in env.tool_schemas) or "none"
    with closing(env):
        found = [
            ("tasks", _judge_two_task_draws(tasks, again)),
            ("splits", _judge_held_out_tasks_are_apart(env)),
            *run(_check_env_by_playing_agents(env, tasks)),
            ("prompt", _judge_prompts(env, [*tasks, *listed[-_NUM_LONG:]], tokenizer, limit)),
            ("tools", (True, tools)),
            ("gymnasium", _judge_gymnasium_conformance(env)),
        ]
    rows = [CheckRow(name=name, ok=ok, detail=detail) for name, (ok, detail) in found]
    return CheckReport(env=env_class.__name__, rows=tuple(rows), schemas=env.tool_schemas)


async def _check_env_by_playing_agents(
    env: ToolEnv, tasks: Sequence[Task]
) -> list[tuple[str, Finding]]:
    here = Path.cwd()
    null = await _play_until_invalid(env, NullAgent(), tasks)
    if any(tool.isolated for tool in declaration(type(env)).tools.values()):
        # The process that isolated tools share outlives episodes: let it be there before.
        await env.services.tool_pool.call(int, timeout_s=_WORKER_S)
    before = _count_threads_processes_files()
    random = await _play_until_invalid(env, RandomAgent(1, env.tool_schemas), tasks)
    again = await _play_until_invalid(env, RandomAgent(1, env.tool_schemas), tasks)
    echo = await _play_until_invalid(env, EchoAgent(), tasks)
    own = {name: await _play_until_invalid(env, a, tasks) for name, a in type(env).agents().items()}
    simple = {"null": null, "random": random, "echo": echo}
    expert = await _judge_expert_against_agents(env, tasks, simple)
    after = await _recount_until_leaks_settle(before)
    leaks = [f"{after[k] - before[k]} more {k}" for k in before if after[k] > before[k]]
    leaks += [] if Path.cwd() == here else [f"the working directory is now {Path.cwd()}"]
    os.chdir(here)
    detail = f"{', '.join(leaks)} after than before; undo what is done, by self.resources"
    agents = (*simple.items(), *own.items())
    return [
        ("expert", expert),
        *((f"{name} agent", _judge_episodes_of_agent(played)) for name, played in agents),
        ("determinism", _judge_two_plays(random, again)),
        ("reset twice", await _judge_reset_amid_episode(env, tasks[0])),
        ("leaks", (not leaks, detail if leaks else "none")),
        ("time", _describe_reset_and_step_times([*null, *random, *again, *echo])),
    ]


async def _play_until_invalid(env: ToolEnv, agent: Agent, tasks: Sequence[Task]) -> list[Played]:
    """The agent's episodes up to the first invalid one: each may have waited for a time limit."""
    played: list[Played] = []
    for seed, task in enumerate(tasks):
        played.append(await play_episode(env, agent, task, seed))
        if isinstance(played[-1].outcome, Invalid):
            break
    return played


async def play_episode(env: ToolEnv, agent: Agent, task: Task, seed: int) -> Played:
    """One episode; a fault of the environment is its outcome."""
    played = Played((), Invalid(reason="it was not scored", blame="environment"))
    try:
        async with aclosing(env):
            await _play_turns(env, agent, task, seed, played)
    except EpisodeError as error:
        played.outcome = Invalid(reason=str(error), blame=error.blame)
    played.messages = env.conversation
    return played


async def _play_turns(env: ToolEnv, agent: Agent, task: Task, seed: int, played: Played) -> None:
    start = time.perf_counter()
    await env.areset(seed=seed, options={"task": task})
    played.reset_s = time.perf_counter() - start
    stop = None
    while stop is None:
        with user_code("the agent's act"):
            turn = agent.act(env.view())
        start = time.perf_counter()
        transition = await env.advance(turn)
        played.step_s.append(time.perf_counter() - start)
        played.rewards.append(transition.reward)
        played.parts.update(transition.parts)
        stop = transition.stop
    played.outcome = await env.ascore()
    if isinstance(played.outcome, Score):
        played.parts.update(played.outcome.parts)


async def _judge_expert_against_agents(
    env: ToolEnv, tasks: Sequence[Task], simple: Mapping[str, list[Played]]
) -> Finding:
    """Whether the reward tells the expert, or else anybody, from agents that know nothing."""
    agent = type(env).expert()
    returns = {name: _average_return(played) for name, played in simple.items()}
    if agent is None:
        values = {p.value for played in simple.values() for p in played}
        if len(values) == 1 and values != {0.0}:
            detail = f"none, and every agent gets {values.pop():.3g}: the reward tells nobody apart"
            return False, detail
        return True, "none; sft needs one"
    ok, detail = _judge_episodes_of_agent(played := await _play_until_invalid(env, agent, tasks))
    best = max(returns, key=lambda name: returns[name])
    if ok and _average_return(played) <= returns[best]:
        return False, f"{detail}, but the {best} agent gets {returns[best]:.3g}"
    return ok, detail


def _judge_held_out_tasks_are_apart(env: ToolEnv) -> Finding:
    """Whether there are tasks to measure with that are not trained on."""
    cls, config = type(env), env.config
    samples: dict[str, set[str]] = {}
    for split in SPLITS:
        try:
            tasks = cls.listed_tasks(split, config)
            made = range(_NUM_MADE if tasks is None else 0)
            tasks = tasks or [cls.task_at(i, split=split, seed=0, config=config) for i in made]
        except ConfigError as error:
            return False, str(error)
        samples[split] = {repr((task.messages(), task.answer, task.data)) for task in tasks}
    train, heldout = samples.values()
    shared = len(train & heldout)
    listed = cls.listed_tasks("train", config) is not None
    ok = not shared if listed else shared < len(heldout)
    detail = f"{len(heldout)} held-out tasks, {shared} of them in train too"
    return ok, detail if listed else f"of {_NUM_MADE}: {detail}"


def _count_prompt_characters(task: Task) -> int:
    return sum(len(message.content) for message in task.messages())


def _judge_two_task_draws(first: Sequence[Task], second: Sequence[Task]) -> Finding:
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.id != b.id:
            detail = f"task {i} is another the second time; make_task must draw from its rng only"
            return False, detail
    return True, f"{len(first)}, {len({task.id for task in first})} of them different; repeatable"


def _judge_episodes_of_agent(played: list[Played]) -> Finding:
    invalid = [p.outcome for p in played if isinstance(p.outcome, Invalid)]
    if invalid:
        return False, f"episode {len(played)} is invalid: {invalid[0].reason}"
    turns = sum(len(p.rewards) for p in played) / len(played)
    return (
        True,
        f"{len(played)} episodes, mean return {_average_return(played):.3g}, {turns:.1f} turns",
    )


def _average_return(played: list[Played]) -> float:
    return sum(p.value for p in played) / len(played)


def _judge_two_plays(first: list[Played], second: list[Played]) -> Finding:
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if (a.messages, a.rewards, a.outcome) != (b.messages, b.rewards, b.outcome):
            return False, f"task {i} with the same seed and turns went differently; use self.rng"
    return True, "same seed and turns, same episode"


async def _judge_reset_amid_episode(env: ToolEnv, task: Task) -> Finding:
    """A reset in the middle of an episode leaves nothing of it."""
    try:
        async with aclosing(env):
            await env.areset(seed=0, options={"task": task})
            first = env.conversation
            await env.areset(seed=0, options={"task": task})
            same = env.conversation == first
    except EpisodeError as error:
        return False, str(error)
    detail = "the same beginning" if same else "the second beginning differs from the first"
    return same, detail


def _count_threads_processes_files() -> dict[str, int]:
    """What a process can leak."""
    process = psutil.Process(os.getpid())
    return {
        # Those of the event loop's own pool are as many as it likes, and end with it.
        "threads": sum(not t.name.startswith("asyncio_") for t in threading.enumerate()),
        "processes": len(process.children(recursive=True)),
        "open files": process.num_fds(),
    }


async def _recount_until_leaks_settle(before: dict[str, int]) -> dict[str, int]:
    """The census after threads and processes that are ending had a second to do so."""
    after = _count_threads_processes_files()
    for _ in range(20):
        if all(after[kind] <= before[kind] for kind in before):
            break
        await asyncio.sleep(0.05)
        after = _count_threads_processes_files()
    return after


def _describe_reset_and_step_times(played: list[Played]) -> Finding:
    steps = [s for p in played for s in p.step_s] or [0.0]
    resets = [p.reset_s for p in played]
    detail = (
        f"reset {1e3 * sum(resets) / len(resets):.2f} ms, "
        f"step {1e3 * sum(steps) / len(steps):.2f} ms (longest {1e3 * max(steps):.2f} ms)"
    )
    return True, detail


def _judge_prompts(
    env: ToolEnv, tasks: Sequence[Task], tokenizer: Tokenizer | None, limit: int | None
) -> Finding:
    try:
        prompts = [env.first_messages(task) for task in tasks]
    except EpisodeError as error:
        return False, str(error)
    if tokenizer is None:
        size = max(sum(len(message.content) for message in prompt) for prompt in prompts)
        return True, f"at most {size} characters without tools"
    with template_time_limit():
        renderer = Renderer(tokenizer, env.tool_schemas)
        size = max(len(renderer.prompt(prompt)) for prompt in prompts)
    if limit is not None and size >= limit:
        detail = f"{size} tokens, expected less than {limit}, so that a turn has room behind it"
        return False, detail
    return True, f"at most {size} tokens"


def _judge_gymnasium_conformance(env: ToolEnv) -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check_env(env, skip_render_check=True)
        except _GYMNASIUM_FAILURES as error:
            return False, str(error) or repr(error)
    return True, "check_env passes"
