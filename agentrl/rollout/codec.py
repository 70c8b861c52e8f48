"""`Codec`: the tokenizer, the tool-call format and one renderer per set of tools."""

from collections import OrderedDict
from collections.abc import Sequence

from agentrl.tokens import Reasoning, Renderer, Results, Tokenizer, ToolFormat, choose_format
from agentrl.tokens.time_limit import template_time_limit
from agentrl.types import Message, ToolSchema

PROMPTS_KEPT = 256


class Codec:
    """Turns messages into ids, and has the format that reads sampled ones, for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tool_format: str | type[ToolFormat] | None = None,
        reasoning: Reasoning = "keep",
        tool_results: Results = "template",
    ) -> None:
        self.tokenizer = tokenizer
        self._reasoning: Reasoning = reasoning
        self._tool_results: Results = tool_results
        self.format = choose_format(tokenizer, tool_format)
        self._renderers: dict[str, Renderer] = {}
        self._prompts: OrderedDict[tuple[Renderer, str], list[int]] = OrderedDict()

    def renderer(self, tools: Sequence[ToolSchema]) -> Renderer:
        """The renderer for these tools; made and checked once per set of tools.

        Raises ConfigError, each time, if the chat template cannot be used.
        """
        key = repr(tuple(tools))
        renderer = self._renderers.get(key)
        if renderer is None:
            with template_time_limit():
                renderer = Renderer(
                    self.tokenizer,
                    tools,
                    tool_results=self._tool_results,
                    reasoning=self._reasoning,
                    tool_format=self.format,
                )
                renderer.check()
            self._renderers[key] = renderer
        return renderer

    def prompt(self, renderer: Renderer, messages: Sequence[Message]) -> list[int]:
        """The ids of a first prompt; a group shares its prompt, so the last ones are kept."""
        key = (renderer, repr(messages))
        ids = self._prompts.get(key)
        if ids is None:
            ids = self._prompts[key] = renderer.prompt(messages)
            if len(self._prompts) > PROMPTS_KEPT:
                self._prompts.popitem(last=False)
        return ids
