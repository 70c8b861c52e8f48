"""Messages, tool calls and the parsed assistant turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from agentrl.types.tokens import StopReason

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Role = Literal["system", "developer", "user", "assistant", "tool"]


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


CUT_OFF = "cut_off"
"""In place of a reason: the call was whole, but its turn was cut off, so it did not run."""


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
