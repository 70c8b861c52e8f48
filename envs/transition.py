"""What one turn did to an episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.types import EpisodeStop, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The environment's answer to one turn of the policy."""

    messages: tuple[Message, ...] = ()
    """What the environment says: tool results in call order, or the next user message."""
    reward: float = 0.0
    """The sum of `self.reward(x)` in this turn, without the score."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same, by the names that `self.reward(x, name)` gave."""
    state_key: str | None = None
    """The world's state key at the beginning of the turn: the state that was acted in."""
    stop: EpisodeStop | None = None
    """None while the episode goes on."""
    num_calls: int = 0
    """Tool calls that the policy made, the failed ones included."""
    call_errors: tuple[str, ...] = ()
    """Reasons of calls that did not run, "tool_error" or "tool_timeout" for those that failed."""
