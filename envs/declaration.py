"""What an environment class declares, checked before anything runs; its rules in one frozen type.

A rule is an attribute of `DeclaredRules` and a field of `EnvRules`, and is read where it acts: of a
turn in `turn_rules`, of a hook in `hooks`. Whatever lies between, also the way into a process of
its own, carries all of them and names none.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pydantic import ValidationError

from agentrl.config import Config
from agentrl.config.nearest import nearest
from agentrl.envs.tasks import GeneratedTasks, Tasks, TaskSource, declared_tasks, listed_tasks
from agentrl.errors import ConfigError
from agentrl.tools import ToolSpec, tool_spec, tools_of, unique_tools, user_code
from agentrl.types import Task
from agentrl.verifiers import (
    Verifier,
    check_success_at,
    resolve_verifier,
    score_range,
    success_at,
)

if TYPE_CHECKING:
    from agentrl.envs.toolenv import ToolEnv
from typing import Literal

from pydantic import ConfigDict, Field

from agentrl.config.describe import describe_expected

Isolation = Literal["none", "process"]


class DeclaredRules:
    """The attributes of `ToolEnv` that a subclass, or an instance before its reset, may set."""

    system: str = ""
    """The system prompt; empty: none."""
    max_turns: int = 8
    """After this many turns the episode is truncated."""
    warn_turns: int = 0
    """When no more turns than these are left, the last tool result of a turn says how many."""
    isolation: Isolation = "none"
    """"process": each episode is played in a process of its own."""
    tool_timeout_s: float = 30.0
    hook_timeout_s: float = 60.0
    """For setup, reply, score, state_key, teardown and each resource's closing."""
    grace_s: float = 1.0
    """How long a hanging sync tool is waited for after its timeout."""
    max_tool_tokens: int = 2048
    """A longer tool result loses its middle."""


class EnvRules(Config):
    """The rules that one episode is played by; see `DeclaredRules` for what they mean."""

    model_config = ConfigDict(strict=True, allow_inf_nan=True)

    system: str | None
    max_turns: int = Field(gt=0)
    warn_turns: int = Field(ge=0)
    isolation: Isolation
    tool_timeout_s: float = Field(gt=0)
    hook_timeout_s: float = Field(gt=0)
    grace_s: float = Field(gt=0)
    max_tool_tokens: int = Field(gt=0)


def rules_of(env: DeclaredRules | type[DeclaredRules]) -> EnvRules:
    """The rules that a class or an instance has now.

    Raises:
        ConfigError: One is of another type, or out of range.
    """
    given = {name: getattr(env, name) for name in EnvRules.model_fields}
    try:
        return EnvRules.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = str(problem["loc"][0])
        name = (env if isinstance(env, type) else type(env)).__name__
        raise ConfigError(
            f"{name}.{key} is {given[key]!r}, expected {describe_expected(problem)}"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The parts of a class that are the same for all of its instances."""

    tools: Mapping[str, ToolSpec]
    source: Callable[[Config], TaskSource]
    """Where its tasks come from, by its parameters."""
    verifier: Verifier | None
    success_at: float | None
    """The least score that is a success, if class or verifier says it."""
    hooks: frozenset[str]
    """The hooks that the class defines; the others need not be called."""


def declaration(cls: "type[ToolEnv]") -> Declaration:
    """Read and check the class, the first time that it is asked for.

    Raises:
        ConfigError: Something is missing, doubled or out of range.
    """
    found: object = vars(cls).get("_declaration")
    if not isinstance(found, Declaration):
        found = _read_declaration_of_class(cls)
        type.__setattr__(cls, "_declaration", found)
    return found


def refresh_declaration(cls: "type[ToolEnv]") -> None:
    """Check the class, and read the file of its verifier again.

    Raises:
        ConfigError: As `declaration`.
    """
    found = declaration(cls)
    if isinstance(cls.verifier, str):
        verifier = _resolve_verifier(cls)
        found = replace(found, verifier=verifier, success_at=_resolve_success_at(cls, verifier))
        type.__setattr__(cls, "_declaration", found)


def _resolve_verifier(cls: "type[ToolEnv]") -> Verifier | None:
    return None if cls.verifier is None else resolve_verifier(cls.verifier, _find_class_folder(cls))


def _read_declaration_of_class(cls: "type[ToolEnv]") -> Declaration:
    # An instance is made by the loop, with the arguments of `ToolEnv`.
    signature = inspect.signature(cls.__init__)
    try:
        signature.bind(None, None, verifier=None, tokenizer=None, services=None)
    except TypeError as error:
        raise ConfigError(
            f"{cls.__name__} has an __init__ that does not take what ToolEnv's does ({error}); "
            "build the world in setup(), and declare parameters in Config"
        ) from error
    rules_of(cls)
    if not callable(cls.context):
        raise ConfigError(f"{cls.__name__}.context is {cls.context!r}, expected a context policy")
    verifier = _resolve_verifier(cls)
    return Declaration(
        verifier=verifier,
        success_at=_resolve_success_at(cls, verifier),
        tools={spec.name: spec for spec in _list_tools_of_class(cls)},
        source=_make_task_source_of_class(cls),
        hooks=frozenset(
            h for h in ("setup", "reply", "score", "state_key", "teardown") if _defines_hook(cls, h)
        ),
    )


def _resolve_success_at(cls: "type[ToolEnv]", verifier: Verifier | None) -> float | None:
    """What the class says of its own scoring, else what its verifier says."""
    declared = cast("object", cls.success_at)
    if declared is None:
        return success_at(verifier)
    # A range of its own is for the class's own score; None stands for what is passed in later.
    scores = score_range(cls if verifier is None else verifier)
    return check_success_at(declared, scores, cls.__name__)


def require_scoring(cls: "type[ToolEnv]", verifier: object | None) -> None:
    """One way of scoring; a `verifier` that is passed in takes the place of the class's own.

    Raises:
        ConfigError: There is none, or the class declares two.
    """
    own = _defines_hook(cls, "score")
    if own and cls.verifier is not None:
        raise ConfigError(f"{cls.__name__} has both verifier and score; keep one of them")
    if not own and cls.verifier is None and verifier is None:
        raise ConfigError(
            f"{cls.__name__} has no scoring; write score(self, answer), set verifier, or pass one"
        )


def task_source(cls: "type[ToolEnv]", config: Config) -> TaskSource:
    """The tasks of the class, made with these parameters."""
    return declaration(cls).source(config)


def _make_task_source_of_class(cls: "type[ToolEnv]") -> Callable[[Config], TaskSource]:
    folder = _find_class_folder(cls)
    found = ["tasks"] * (cls.tasks is not None)
    found += [name for name in ("make_task", "list_tasks") if hasattr(cls, name)]
    match found:
        case ["tasks"]:
            current = declared_tasks(cast("Tasks", cls.tasks), folder)
            return lambda _: current()
        case ["list_tasks"]:
            list_tasks = cast("Callable[[Config], Tasks]", getattr(cls, "list_tasks"))  # noqa: B009

            def read_listed(config: Config) -> TaskSource:
                with user_code("list_tasks"):
                    tasks = list_tasks(config)
                return listed_tasks(tasks, folder)

            return read_listed
        case ["make_task"]:
            make_task = _adapt_make_task_signature(cls)
            return lambda config: GeneratedTasks(lambda rng, split: make_task(rng, split, config))
        case _:
            both = f"both {' and '.join(found)}" if found else "no tasks"
            raise ConfigError(
                f"{cls.__name__} has {both}; give it either tasks or make_task(rng, split)"
            )


def make_config(cls: "type[ToolEnv]", config: Config | Mapping[str, Any] | None) -> Config:
    """The parameters of an instance; wrong ones are a ConfigError in one sentence."""
    if isinstance(config, Config):
        if not isinstance(config, cls.Config):
            raise ConfigError(
                f"{cls.__name__} got a config of type {type(config).__qualname__}, expected "
                f"{cls.Config.__qualname__}"
            )
        return config
    try:
        return cls.Config.model_validate(dict(config or {}))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            hint = nearest(key, cls.Config.model_fields)
            raise ConfigError(f"{cls.__name__}.{key}: unknown key, {hint}") from error
        raise ConfigError(
            f"{cls.__name__}.{key}: got {problem['input']!r}; {problem['msg']}"
        ) from error


def _adapt_make_task_signature(
    cls: "type[ToolEnv]",
) -> Callable[[np.random.Generator, str, Config], Task]:
    """The class's `make_task` in its longer form, with the config."""
    declared = inspect.getattr_static(cls, "make_task")
    if not isinstance(declared, classmethod | staticmethod):
        raise ConfigError(f"{cls.__name__}.make_task is no class method; put @classmethod on it")
    make_task = cast("Callable[..., Task]", getattr(cls, "make_task"))  # noqa: B009 (not declared)
    match len(inspect.signature(make_task).parameters):
        case 3:
            return make_task
        case 2:
            return lambda rng, split, _: make_task(rng, split)
        case number:
            raise ConfigError(
                f"{cls.__name__}.make_task takes {number} arguments, expected (rng, split) or "
                "(rng, split, config)"
            )


def _list_tools_of_class(cls: "type[ToolEnv]") -> tuple[ToolSpec, ...]:
    """Methods first, then the functions in `tools`."""
    specs = list(tools_of(cls))
    for function in cls.tools:
        spec = tool_spec(function)
        if spec is None:
            raise ConfigError(f"{cls.__name__}.tools holds {function!r}, which is no @tool")
        specs.append(spec)
    return unique_tools(tuple(specs), cls.__name__)


def _defines_hook(cls: "type[ToolEnv]", hook: str) -> bool:
    """True if a class below ToolEnv defines the hook."""
    definer = next(base for base in cls.__mro__ if hook in vars(base))
    return definer.__module__ != "agentrl.envs.toolenv"


def _find_class_folder(cls: type) -> Path:
    """Where the class is written, else the current directory."""
    try:
        return Path(inspect.getfile(cls)).resolve().parent
    except (TypeError, OSError):
        return Path.cwd()
