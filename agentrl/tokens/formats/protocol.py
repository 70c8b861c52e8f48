"""The contract of a tool-call format."""

from collections.abc import Sequence
from typing import Protocol

from agentrl.types import AssistantTurn, StopReason, ToolCall, ToolSchema


class ToolFormat(Protocol):
    """How a family of models writes tool calls.

    Parsing is total (any input gives a turn, nothing is raised), linear in the length, aware of
    strings, and keeps calls and errors in the order in which they were written. A bad call never
    affects its neighbours. After a LENGTH stop the turn says so and nothing in it may run.
    """

    name: str

    def parse(
        self, ids: Sequence[int], text: str, stop_reason: StopReason, tools: Sequence[ToolSchema]
    ) -> AssistantTurn:
        """The turn in a completion: its `ids`, and `text`, their decoding with control tokens."""
        ...

    def parse_text(
        self,
        text: str,
        tools: Sequence[ToolSchema],
        *,
        stop_reason: StopReason = StopReason.STOP,
    ) -> AssistantTurn:
        """The turn in a text without stop token; every marker written out counts."""
        ...

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """What to tell a model about its tools where its template does not."""
        ...

    def render_reasoning(self, reasoning: str) -> str:
        """A thinking block, as a model writes it before its text."""
        ...

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Calls as a model writes them."""
        ...

    def render_results(self, results: Sequence[str]) -> str:
        """The results of one turn's calls as the text of a user message."""
        ...
