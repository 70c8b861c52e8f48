"""Messages and calls, tasks, scores, the record of one episode, and which episode of a run it is.

The seeds follow from that identity (`EpisodeKey`): never from time or order.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, runtime_checkable

from agentrl.errors import Blame
from agentrl.types.batch import Segment, StopReason

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Role = Literal["system", "developer", "user", "assistant", "tool"]
CUT_OFF = "cut_off"
"""In place of a reason: the call was whole, but its turn was cut off, so it did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One well-formed call; `arguments` is always a mapping, never JSON text."""

    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])
    id: str = ""
    """Unique within its turn, set by the parser ("call_0", "call_1", ...)."""


class CallErrorReason(StrEnum):
    """Why a piece of model output is not a call."""

    MALFORMED = "malformed"
    """The text between the markers is not in the format (bad JSON, no name, wrong shape)."""
    UNCLOSED = "unclosed"
    """The output ended inside the call."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool has that name."""
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments do not fit the tool's schema."""
    TOO_MANY = "too_many"
    """More calls in one turn than the format's cap."""
    TOO_LARGE = "too_large"
    """The call is longer or deeper than the format's cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A call that the model tried to make and that cannot run; `message` is shown to the model."""

    reason: CallErrorReason
    message: str
    name: str | None = None
    """The tool's name where it could be read."""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Assistant messages only."""
    reasoning: str = ""
    """Assistant messages only; the text of the thinking block, without its markers."""
    tool_call_id: str = ""
    """Tool messages only: the call that this result answers."""
    name: str = ""
    """Tool messages only: the tool's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """What the policy said in one turn, parsed from the sampled ids.

    `text` is without reasoning and without calls. `calls` holds calls and failed calls in the order
    in which the model wrote them. After a `length` stop nothing in it may run.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall | CallError, ...] = ()
    stop_reason: StopReason = StopReason.STOP

    def message(self) -> Message:
        """The turn as an assistant message (failed calls are left out)."""
        calls = tuple(call for call in self.calls if isinstance(call, ToolCall))
        return Message(
            role="assistant", content=self.text, reasoning=self.reasoning, tool_calls=calls
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """A tool as the model sees it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """The shape that chat templates expect in `tools`."""
        function: dict[str, Json] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


def require_utf8(text: str, what: str) -> None:
    """Raise ValueError for half of a surrogate pair: files, streams and seeds hold UTF-8."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is {text!a}, which holds half of a surrogate pair") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to solve.

    `answer` is the reference that a verifier compares with; the policy never sees it. `data` is for
    the environment's `setup`. `id` is derived from the content where it is not given.
    """

    prompt: str | tuple[Message, ...]
    answer: Any = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str | tuple):  # pyright: ignore[reportUnnecessaryIsInstance]  # users give it
            raise TypeError(
                f"a task's prompt is of type {type(self.prompt).__name__}, expected text or a "
                "tuple of Message"
            )
        if not self.id:
            data = sorted(self.data.items(), key=lambda item: str(item[0]))
            content = repr((self.prompt, self.answer, data)).encode("utf-8", "backslashreplace")
            digest = hashlib.blake2b(content, digest_size=8).hexdigest()
            object.__setattr__(self, "id", digest)
        require_utf8(self.id, "a task's id")

    def messages(self) -> tuple[Message, ...]:
        """The prompt as messages."""
        if isinstance(self.prompt, str):
            return (Message(role="user", content=self.prompt),)
        return self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a verifier or environment gives an episode; `value` is finite."""

    value: float
    parts: Mapping[str, float] = field(default_factory=lambda: {})
    """Named components, logged under their names."""
    reason: str = ""
    """Why, for people."""

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), *self.parts.items()):
            if not math.isfinite(number):
                raise ValueError(f"score {name} is {number}, expected a finite number")
            require_utf8(name, "the name of a score's part")
        # A reason may name what a policy made; an episode is written as UTF-8.
        reason = self.reason.encode("utf-8", "backslashreplace").decode()
        object.__setattr__(self, "reason", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """No score: something outside the policy failed. Never counted as 0."""

    reason: str
    blame: Blame
    retryable: bool = True

    def __post_init__(self) -> None:
        reason = self.reason.encode("utf-8", "backslashreplace").decode()
        object.__setattr__(self, "reason", reason)


Outcome: TypeAlias = Score | Invalid


class EpisodeStop(StrEnum):
    """Why an episode ended."""

    FINISHED = "finished"
    """A tool called `finish`."""
    ANSWERED = "answered"
    """A turn without calls, and `reply` returned None."""
    MAX_TURNS = "max_turns"
    TURN_TOKENS = "turn_tokens"
    """A completion reached its token limit."""
    CONTEXT_TOKENS = "context_tokens"
    """The context had no room for another turn, and its policy made none."""
    EPISODE_TOKENS = "episode_tokens"
    """The budget over all segments had no room for another turn."""
    WALL_TIME = "wall_time"
    TOOL_TIMEOUT = "tool_timeout"
    """A sync tool outlived its timeout and could not be stopped."""
    INVALID = "invalid"
    """The episode has no score."""

    @property
    def truncated(self) -> bool:
        """Cut by a budget (Gymnasium's word), as against ended by the environment."""
        return self in _TRUNCATED


_TRUNCATED = frozenset(
    {
        EpisodeStop.MAX_TURNS,
        EpisodeStop.TURN_TOKENS,
        EpisodeStop.CONTEXT_TOKENS,
        EpisodeStop.EPISODE_TOKENS,
        EpisodeStop.WALL_TIME,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """What one turn was, beside its tokens; a turn that wrote a summary has no answer."""

    reward: float = 0.0
    """The sum of `self.reward(x)` in this turn; the last turn also holds the score."""
    parts: Mapping[str, float] = field(default_factory=lambda: {})
    state_key: str | None = None
    num_sampled: int = 0
    num_calls: int = 0
    call_errors: tuple[str, ...] = ()
    """The reasons of calls that did not run, and "tool_error" for each ToolError."""
    cached_tokens: int = 0
    generate_s: float = 0.0
    environment_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The record of one episode: tokens, messages, rewards, timings, why it ended."""

    id: str
    """Unique in a run: see `EpisodeKey`."""
    env: str
    task: Task
    split: str
    group: int
    """Unique in a run: see `EpisodeKey`."""
    member: int
    attempt: int
    seed: int
    segments: tuple[Segment, ...]
    messages: tuple[Message, ...]
    turns: tuple[TurnRecord, ...]
    stop: EpisodeStop
    outcome: Outcome
    answer: Any = None
    wall_s: float = 0.0
    score_s: float = 0.0
    dropped: str = ""
    """Why nobody trains on it: `flat` (its group teaches nothing), `cut`, `filter`, `late`,
    `straggler` (it may have been stopped, without a score), or a policy's own; empty otherwise."""

    @property
    def reward(self) -> float:
        """The return: the sum of the turns' rewards. Only scored episodes have one."""
        return sum(turn.reward for turn in self.turns)

    @property
    def valid(self) -> bool:
        """True if the episode has a score."""
        return isinstance(self.outcome, Score)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """What a verifier's `score_episode` and an agent get to see: read-only and picklable."""

    task: Task
    messages: tuple[Message, ...]
    answer: Any = None
    stop: EpisodeStop | None = None
    """None while the episode runs."""
    call_errors: tuple[str, ...] | None = None
    """As in the turns' records, all of them; None: unknown."""


@runtime_checkable
class Agent(Protocol):
    """Anything that plays the policy's part: experts, oracles, null, echo, random, scripted."""

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The next assistant turn, given the conversation so far."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeSession:
    """The identity of one episode towards an engine: its turns share a prefix, long or short.

    `view` lets a scripted engine see the conversation that a real engine sees as ids.
    """

    key: str
    view: Callable[[], EpisodeView] | None = None


Purpose = Literal["train", "eval", "demonstration"]
_DIGITS: Final[Mapping[Purpose, int]] = {"train": 0, "eval": 1, "demonstration": 2}
_PLACES: Final = 10**9
"""More groups than a step ever has."""
_TURN_STRIDE: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """The identity of one try of one episode: its id and its seed follow from it."""

    run: int
    """The run's seed."""
    purpose: Purpose
    step: int
    group: int
    """Number of its group, unique in the run: the step, a digit for the purpose, and nine digits
    for the group's place in that step."""
    member: int
    attempt: int

    @classmethod
    def first(cls, *, run: int, step: int, place: int, purpose: Purpose = "train") -> Self:
        """The first try of the first member of the group at a place of a step."""
        group = (10 * step + _DIGITS[purpose]) * _PLACES + place
        return cls(run=run, purpose=purpose, step=step, group=group, member=0, attempt=0)

    def of_try(self, member: int, attempt: int) -> Self:
        """The same group's identity of another member and attempt."""
        return replace(self, member=member, attempt=attempt)

    @property
    def id(self) -> str:
        """Unique in the run: `<purpose>-s<step>-g<place>-m<member>-a<attempt>`."""
        place = self.group % _PLACES
        return f"{self.purpose}-s{self.step}-g{place}-m{self.member}-a{self.attempt}"

    def seed(self, task: str) -> int:
        """The seed of the episode that plays the task of this id."""
        place = self.group % _PLACES
        return derive_seed(
            self.run, self.purpose, self.step, task, place, self.member, self.attempt
        )


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn of the episode with this seed, so that a turn can be drawn again."""
    return (seed + _TURN_STRIDE * (turn + 1)) % 2**63


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts, for example (run seed, "order", number of the environment).

    Parts are length-prefixed, so ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1
