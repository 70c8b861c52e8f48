"""Context policies: what the next request shows when the conversation grows towards its limit.

Before each request but the first the policy is asked, with the real number of tokens:

    None        go on: the new messages are appended to the segment
    messages    close the segment; the next one begins with a prompt of these messages
    Ask         let the policy write first (a summary), then begin with what is made of its text

docs/context.md has an example of each.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, cast

from pydantic import Field

from agentrl.config import Config
from agentrl.config.anchor import Reference
from agentrl.config.seams import Seam, check_function
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.types import Message

DROPPED: Final = "(dropped)"
SUMMARY: Final = "Summary:"
REQUEST: Final = "Reply with what you have to know: the rest is lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextView:
    """What a policy decides on."""

    first: tuple[Message, ...]
    """What the episode began with: system prompt and task."""
    messages: tuple[Message, ...]
    """What the next request shows if nothing is rewritten."""
    num_new: int
    """How many of them, at the end, the model has not read yet."""
    num_tokens: int
    """Real tokens of the segment so far, as the engine has them."""
    new_tokens: int
    """Tokens that the new messages add."""
    max_context_tokens: int
    """Most tokens of a request with its completion (`rollout.max_context_tokens`)."""
    seed: int
    """The same for every episode of a task, so that a group shares what is drawn from it."""
    count: Callable[[Sequence[Message]], int]
    """Tokens of a prompt that shows these messages; renders them."""

    def threshold(self, at: int | None) -> int:
        """`at` tokens, by default 3/4 of the limit."""
        return self.max_context_tokens * 3 // 4 if at is None else at

    def exceeds(self, at: int | None) -> bool:
        """True if the next request has more than `at` tokens; by default 3/4 of the limit."""
        return self.num_tokens + self.new_tokens > self.threshold(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Let the policy answer `request`, without tools, as the last turn of the segment."""

    request: str
    """Shown to the model behind the newest messages."""
    then: Callable[[str], Sequence[Message]]
    """The next segment's first messages, given the answer without its reasoning."""
    trained: bool = True
    """False: the answer's tokens are recorded, with mask false."""


class ContextPolicy(Protocol):
    """Any function of a view; `Keep` and the other classes here are some."""

    def __call__(self, view: ContextView, /) -> Sequence[Message] | Ask | None:
        """None, the first messages of the next segment, or a question to the model."""
        ...


@dataclass(frozen=True, slots=True)
class Keep:
    """Never rewrite: the episode ends where its context is full."""

    def __call__(self, view: ContextView, /) -> None:
        """Go on."""


@dataclass(frozen=True, slots=True)
class DropToolResults:
    """Above `at` tokens: empty all tool results but the newest `keep`."""

    keep: int = 2
    at: int | None = None

    def __call__(self, view: ContextView, /) -> Sequence[Message] | None:
        """The same messages with a mark in place of old results."""
        if not view.exceeds(self.at):
            return None
        results = [i for i, m in enumerate(view.messages) if m.role == "tool"]
        old = set(results[: max(0, len(results) - self.keep)])
        shorter = tuple(
            replace(m, content=DROPPED) if i in old else m for i, m in enumerate(view.messages)
        )
        return shorter if shorter != view.messages else None


@dataclass(frozen=True, slots=True)
class Window:
    """Above `tokens`: the task and as many of the newest turns as fit into half of that.

    The newest turn always stays. Half, so that not every turn begins a segment.
    """

    tokens: int | None = None

    def __call__(self, view: ContextView, /) -> Sequence[Message] | None:
        """The first messages and the newest turns, each turn with its answers."""
        if not view.exceeds(self.tokens):
            return None
        room = view.threshold(self.tokens) // 2
        head, messages = view.first, view.messages
        starts = [i for i in range(len(head), len(messages)) if messages[i].role == "assistant"]
        tails = [(*head, *messages[start:]) for start in starts]
        fits = bisect_left(tails, True, key=lambda tail: view.count(tail) <= room)
        kept = min(fits, len(tails) - 1)
        return tails[kept] if kept > 0 else None


@dataclass(frozen=True, slots=True)
class Summarise:
    """Above `at` tokens: the policy writes a summary, and goes on from the task with it.

    The summary is sampled like any turn and trained with the episode's return, unless `trained` is
    false. The threshold is drawn for each task between 3/4 of `at` and `at`.
    """

    at: int | None = None
    trained: bool = True
    request: str = REQUEST

    def __call__(self, view: ContextView, /) -> Ask | None:
        """A request for the summary."""
        at = view.threshold(self.at)
        if not view.exceeds(at - view.seed % (at // 4 + 1)):
            return None
        then = partial(_append_summary_message, view.first)
        return Ask(request=self.request, then=then, trained=self.trained)


def _append_summary_message(first: Sequence[Message], text: str) -> tuple[Message, ...]:
    return followed_by(first, f"{SUMMARY} {text.strip()}")


def followed_by(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The messages with a text of the user at their end; no two user messages in a row."""
    if messages and messages[-1].role == "user":
        last = replace(messages[-1], content=f"{messages[-1].content}\n{text}")
        return (*messages[:-1], last)
    return (*messages, Message(role="user", content=text))


def checked_decision(decision: object) -> Sequence[Message] | Ask | None:
    """What a policy returned, if it is one of the three things that it may be.

    Raises:
        EnvironmentFault: it is something else.
    """
    if isinstance(decision, Ask):
        if not str(decision.request or "").strip() or not callable(decision.then):
            raise EnvironmentFault("the context policy asks without a text, or without a `then`")
        return decision
    return None if decision is None else checked_messages(decision)


def checked_messages(found: object) -> Sequence[Message]:
    """Messages that a segment can begin with. Raises EnvironmentFault for anything else."""
    shown = repr(found)[:60]
    items = cast("Sequence[object]", found) if isinstance(found, list | tuple) else ()
    messages = [item for item in items if isinstance(item, Message)]
    if not messages or len(messages) != len(items) or messages[-1].role not in ("user", "tool"):
        raise EnvironmentFault(
            f"the context policy returned {shown}, expected None, an Ask, or messages "
            "of which the last is the user's or a tool's"
        )
    return messages


class ContextConfig(Config):
    """What happens to the conversation when it grows towards the limit of the context."""

    policy: Reference | None = Field(
        default=None,
        description="keep, drop_tool_results, window, summarise or a reference to a function; "
        "the environment's own by default.",
    )
    at: int | None = Field(
        default=None,
        ge=8,
        description="Tokens above which it is rewritten; 3/4 of the limit by default.",
    )
    keep: int = Field(default=2, ge=0, description="Newest results that drop_tool_results keeps.")
    trained: bool = Field(default=True, description="Train the tokens of summaries.")


_BUILT_IN: Mapping[str, Callable[[ContextConfig], ContextPolicy]] = {
    "keep": lambda config: Keep(),
    "drop_tool_results": lambda config: DropToolResults(config.keep, config.at),
    "window": lambda config: Window(config.at),
    "summarise": lambda config: Summarise(config.at, config.trained),
}


def resolve_context(config: ContextConfig) -> ContextPolicy | None:
    """The policy that a run asks for; None leaves it to the environment.

    Raises:
        ConfigError: the policy is unknown, or a key is set that no policy was named for.
    """
    name = config.policy
    if name is None:
        if config != ContextConfig():
            key = min(config.model_fields_set, default="at")
            raise ConfigError(f"context.{key}: is set, but no policy; pass --context NAME too")
        return None
    if name in _BUILT_IN:
        return _BUILT_IN[name](config)
    found = Seam("context policy", _BUILT_IN, "agentrl.context_policies").find(name)
    check_function(found, f"context policy {name}", "view")
    return cast("ContextPolicy", found)
