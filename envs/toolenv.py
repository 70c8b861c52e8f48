"""`ToolEnv`: the class that users write environments with. docs/environments.md is its contract."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import ResetNeeded

from agentrl.config import Config as BaseConfig
from agentrl.envs.context import ContextPolicy, Keep
from agentrl.envs.declaration import (
    DeclaredRules,
    declaration,
    make_config,
    require_scoring,
    rules_of,
    task_source,
)
from agentrl.envs.gym_adapter import GymSide, Info, text_of
from agentrl.envs.hooks import Resources
from agentrl.envs.remote import RemotePlay
from agentrl.envs.services import EnvServices, default_services
from agentrl.envs.tasks import Tasks, TaskSource
from agentrl.envs.transition import NO_ANSWERS, ToolAnswer, Transition
from agentrl.envs.turn_rules import Play, check_text
from agentrl.errors import ConfigError, EpisodeError
from agentrl.tools import TextTokenizer
from agentrl.types import (
    Agent,
    AssistantTurn,
    EpisodeStop,
    EpisodeView,
    Message,
    Outcome,
    Score,
    StopReason,
    Task,
    ToolCall,
    ToolSchema,
)
from agentrl.verifiers import resolve_verifier, score_with, success_at

_log = logging.getLogger(__name__)


class ToolEnv(DeclaredRules, GymSide):
    """The world of one episode: its tasks, its tools, its rules and its score.

    A subclass sets attributes, marks methods with `@tool` and defines the hooks that it needs; each
    hook may be sync or async. Tasks come from `tasks`, or from a class method: either
    `make_task(rng, split) -> Task`, which may take the `config` as a third argument, or
    `list_tasks(config)`, which gives what `tasks` would be. The score
    comes from `verifier` or from `score`. The docstring is documentation; the prompt is `system`.
    """

    tasks: ClassVar[Tasks | None] = None
    """A JSONL file, a sequence of tasks, or one of them for each split."""
    tools: ClassVar[Sequence[Callable[..., Any]]] = ()
    """Tools that are no methods."""
    verifier: ClassVar[object | None] = None
    """Scores by task and answer alone; an object or a reference."""
    success_at: float | None = None
    """The least score that is a success; None: the verifier says, else 1 is one and 0 is none."""
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Where `success_at` lies; for a class whose own `score` gives other values."""
    context: ContextPolicy = Keep()
    """What happens to the conversation when it grows towards the limit of the model's context."""

    Config: ClassVar[type[BaseConfig]] = BaseConfig
    """Replace it by a nested class to give the environment parameters."""
    config: Any
    """The parameters; a subclass with its own Config annotates it: `config: Config`."""

    def __init__(
        self,
        config: BaseConfig | Mapping[str, Any] | None = None,
        *,
        verifier: object | None = None,
        tokenizer: TextTokenizer | None = None,
        services: EnvServices | None = None,
    ) -> None:
        """Check the class; nothing runs before `reset`.

        Args:
            config: parameters, as a `Config` or as a mapping.
            verifier: scores instead of the class's own verifier or score.
            tokenizer: counts the tokens of tool results.
            services: what the environments of a run share.

        Raises:
            ConfigError: The class or a parameter is wrong.
        """
        super().__init__()
        cls = type(self)
        self._declared = declaration(cls)
        require_scoring(cls, verifier)
        self._verifier = self._declared.verifier if verifier is None else resolve_verifier(verifier)
        self.success_at = (
            self._declared.success_at if verifier is None else success_at(self._verifier)
        )
        self.config = make_config(cls, config)
        self.context = cls.context  # from the class: a plain function must not become a method
        self._tokenizer = tokenizer
        self.services = services or default_services()
        """What the environments of a run share: the processes for isolated work."""
        self._play: Play | RemotePlay | None = None
        self._outcome: Outcome | None = None

    # Hooks: a subclass defines those that it needs.

    def setup(self) -> Awaitable[None] | None:
        """Build the world of `self.task`; what has to be closed goes into `self.resources`."""

    def reply(self, text: str) -> Awaitable[str | None] | str | None:
        """Answer a turn without tool calls; None, the default, ends the episode."""
        return None

    def score(self, answer: Any) -> Awaitable[Score | float] | Score | float:
        """Score the final state of the world, before its teardown."""
        raise NotImplementedError

    def state_key(self) -> Awaitable[str | None] | str | None:
        """A name for the state of the world: equal states of a task have equal names."""
        return None

    def teardown(self) -> Awaitable[None] | None:
        """Undo what `setup` did; runs once per setup on every path, also if setup failed."""

    @classmethod
    def expert(cls) -> Agent | None:
        """A scripted agent that solves the tasks, if there is one: for demonstrations and tests."""
        return None

    @classmethod
    def agents(cls) -> Mapping[str, Agent]:
        """Further scripted agents by name: `env check` plays them, `eval --agent` knows them."""
        return {}

    def admission(self, task: Task) -> AbstractAsyncContextManager[object]:
        """Holds what is scarce for the time of an episode: the agent loop enters it before `reset`.

        Waiting here is nobody's time: no limit of the episode runs yet.
        """
        return nullcontext()

    # What hooks and tools use.

    @property
    def task(self) -> Task:
        """The task of the episode."""
        if self._play is None:
            raise ResetNeeded("there is no task yet; call reset first")
        return self._play.task

    @property
    def rng(self) -> np.random.Generator:
        """The source of everything random in the episode, seeded by `reset`."""
        return self.np_random

    @property
    def resources(self) -> Resources:
        """What is entered here is closed at the end, in reverse order, on every path."""
        return self._require_episode_in_this_process().world.resources

    def finish(self, answer: Any = None) -> str:
        """End the episode with this answer: `return self.finish(answer)` in a tool."""
        self._require_episode_in_this_process().finish(answer)
        return "Finished."

    def reward(self, value: float, part: str = "") -> None:
        """Add to the reward of the running turn; `part` is the name it is logged under."""
        self._require_episode_in_this_process().reward(value, part)

    # Tasks belong to the class.

    @classmethod
    def task_source(cls, config: BaseConfig | None = None) -> TaskSource:
        """Its tasks as they are now; a source stays as it is when a file changes."""
        return task_source(cls, config or cls.Config())

    @classmethod
    def num_tasks(cls, split: str, config: BaseConfig | None = None) -> int | None:
        """How many different tasks a split has; None: no end."""
        listed = cls.listed_tasks(split, config)
        return None if listed is None else len(listed)

    @classmethod
    def listed_tasks(cls, split: str, config: BaseConfig | None = None) -> Sequence[Task] | None:
        """All tasks of a split in the order of their list; None: no end."""
        return cls.task_source(config).listed(split)

    @classmethod
    def task_at(
        cls, index: int, *, split: str, seed: int, config: BaseConfig | None = None
    ) -> Task:
        """The task at `index`: the same arguments give the same task, in every process."""
        return cls.task_source(config).task(index, split, seed)

    def keep_declaration(self, other: "ToolEnv") -> None:
        """Go by what the class declared when `other` was made with the same arguments."""
        self._declared = other._declared
        self._verifier, self.success_at = other._verifier, other.success_at

    # The typed core: what the agent loop calls.

    @property
    def tool_schemas(self) -> tuple[ToolSchema, ...]:
        """The tools as the model sees them."""
        return tuple(spec.schema for spec in self._declared.tools.values())

    @property
    def in_episode(self) -> bool:
        """True from `reset` to the teardown."""
        return self._play is not None

    @property
    def conversation(self) -> tuple[Message, ...]:
        """All messages of the episode so far; they stay readable after its teardown."""
        return tuple(self._play.messages) if self._play else ()

    @property
    def answer(self) -> Any:
        """What `finish` got, else the last turn's text without reasoning."""
        return self._play.answer if self._play else None

    def view(self) -> EpisodeView:
        """The episode as verifiers and agents see it; it stays readable after its teardown."""
        if self._play is None:
            raise ResetNeeded("there is no episode; call reset first")
        return self._play.view()

    def first_messages(self, task: Task) -> tuple[Message, ...]:
        """What an episode of the task begins with.

        Raises:
            EnvironmentFault: a message is no text that a tokenizer takes.
        """
        first = (Message(role="system", content=self.system),) if self.system else ()
        messages = (*first, *task.messages())
        for message in messages:
            check_text(f"the {message.role} message of task {task.id}", message.content)
        return messages

    async def areset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Begin an episode; one that was there before is torn down first.

        Args:
            seed: of `self.rng`; None goes on with the generator of the last episode.
            options: `task`, else `index` and `split` name the task, else one is drawn by `rng`.

        Raises:
            EnvironmentFault: `setup` raised; what it had opened is closed.
            ConfigError: A rule that was set on the instance is out of range.
        """
        await self.aclose()
        self.seed_rng(seed)
        task = self._choose_task_from_reset_options(options or {})
        messages = self.first_messages(task)
        rules = rules_of(self)
        self._outcome = None
        self._begun_in = asyncio.get_running_loop()
        self.is_open = True
        done = False
        try:
            play = RemotePlay if rules.isolation == "process" else Play
            self._play = play(self, self._declared, rules, self._tokenizer, task, messages)
            await self._play.start(int(self.np_random.integers(1 << 62)) if seed is None else seed)
            done = True
        finally:
            if not done:
                # Close after a failure whose error is the one to be seen.
                try:
                    await self.aclose()
                except EpisodeError as error:
                    _log.warning("%s, after its setup failed: %s", type(self).__name__, error)
        return text_of(messages), {"messages": messages, "task_id": task.id}

    def has_side_effects(self, turn: AssistantTurn) -> bool:
        """Whether the turn calls a tool with side effects; of one that was cut off nothing runs."""
        tools = self._declared.tools
        called = (tools.get(call.name) for call in turn.calls if isinstance(call, ToolCall))
        runs = turn.stop_reason is StopReason.STOP
        return runs and any(tool is not None and tool.side_effects for tool in called)

    async def advance(
        self, turn: AssistantTurn, known: Mapping[str, ToolAnswer] = NO_ANSWERS
    ) -> Transition:
        """Play one turn.

        Args:
            turn: of the policy.
            known: by call id, what tools with side effects answered before: they are not called.

        Raises:
            EpisodeError: The world failed: the episode is Invalid.
            BreakerTripped: Too many sync tools hang.
        """
        return await self._require_open_episode().advance(turn, known)

    async def truncate(self, stop: EpisodeStop, turn: AssistantTurn | None = None) -> Transition:
        """End the episode by a budget of the loop; a turn not yet played is recorded, not run."""
        return await self._require_open_episode().truncate(stop, turn)

    async def ascore(self) -> Outcome:
        """Score the stopped episode; a second call gives the same outcome."""
        play = self._require_open_episode()
        view = play.view()
        if view.stop is None:
            raise RuntimeError("the episode has not stopped; score it after its last turn")
        if self._outcome is None:
            if self._verifier is None:
                self._outcome = await play.score()
            else:
                pool = self.services.verifier_pool
                self._outcome = await score_with(self._verifier, view, pool=pool)
        return self._outcome

    async def aclose(self) -> None:
        """Tear down the episode, if there is one.

        Raises:
            EnvironmentFault: `teardown` or a resource failed to close; the others are closed.
        """
        if self._play is not None and self.is_open:
            await self._play.close()
            self.is_open = False

    # Inside.

    def _choose_task_from_reset_options(self, options: Mapping[str, Any]) -> Task:
        unknown = set(options) - {"task", "split", "index"}
        if unknown:
            raise ConfigError(f"reset got the option {unknown.pop()}, expected task, split, index")
        task = options.get("task")
        if isinstance(task, Task):
            return task
        if task is not None:
            raise ConfigError(f"reset got a {type(task).__name__} as task, expected a Task")
        index, split = options.get("index"), options.get("split", "train")
        if index is None:
            count = self.num_tasks(split, self.config)
            index = int(self.np_random.integers(count or 1 << 31))
        return self.task_at(index, split=split, seed=0, config=self.config)

    def _require_open_episode(self) -> Play | RemotePlay:
        if self._play is None or not self.is_open:
            raise ResetNeeded("there is no episode; call reset first")
        return self._play

    def _require_episode_in_this_process(self) -> Play:
        """The episode, for what only its own code may do."""
        play = self._require_open_episode()
        if not isinstance(play, Play):
            raise ResetNeeded("the episode is in a process of its own, out of reach from here")
        return play
