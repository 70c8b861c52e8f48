"""`Codec`: the tokenizer, the tool-call format and one renderer per set of tools.

What it measures before anything is played: can a prompt be, and is there room behind it?
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from agentrl.envs import ToolEnv
from agentrl.errors import EnvironmentFault
from agentrl.tokens import Reasoning, Renderer, Results, Tokenizer, ToolFormat, choose_format
from agentrl.tokens.time_limit import template_time_limit
from agentrl.types import Message, Task, ToolSchema

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

    def __reduce__(self) -> tuple[object, ...]:
        """By what it was made of."""
        make = partial(
            Codec,
            tool_format=type(self.format),
            reasoning=self._reasoning,
            tool_results=self._tool_results,
        )
        return make, (self.tokenizer,)

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


MOST_RENDERED: Final = 1000
"""Of a long list only so many prompts are rendered, those of most bytes first."""

_BARE: Final = Task(prompt="x")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompt:
    """A task whose prompt leaves no room for a turn."""

    env: str
    task: str
    tokens: int
    limit: int

    def __str__(self) -> str:
        return (
            f"the prompt of task {self.task} of env {self.env} has {self.tokens} tokens, expected "
            f"less than {self.limit}, so that a turn has room; shorten it, or raise "
            "rollout.max_context_tokens and rollout.max_episode_tokens"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OddPrompt:
    """A task whose prompt is no text that a tokenizer takes."""

    env: str
    task: str
    reason: str

    def __str__(self) -> str:
        return f"env {self.env}: {self.reason}"


def odd_prompt(env: ToolEnv, name: str, task: Task) -> OddPrompt | None:
    """The task, if its prompt holds half of a surrogate pair."""
    try:
        env.first_messages(task)
    except EnvironmentFault as fault:
        return OddPrompt(env=name, task=task.id, reason=str(fault))
    return None


def too_long(env: ToolEnv, name: str, task: Task, codec: Codec, limit: int) -> LongPrompt | None:
    """The task, if its prompt has `limit` tokens or more.

    Raises:
        EpisodeError: the prompt cannot be rendered.
    """
    tokens = len(codec.prompt(codec.renderer(env.tool_schemas), env.first_messages(task)))
    if tokens < limit:
        return None
    return LongPrompt(env=name, task=task.id, tokens=tokens, limit=limit)


def find_long(
    env: ToolEnv, name: str, tasks: Sequence[Task], codec: Codec, limit: int
) -> tuple[list[LongPrompt], bool]:
    """Those of the tasks that are too long, the one of most bytes first; False: perhaps not all.

    A token is a byte at least, so what has too few bytes, and for each message as much as a bare
    prompt, is not rendered.
    """
    bare = len(codec.prompt(codec.renderer(env.tool_schemas), env.first_messages(_BARE)))
    texts = [[m.content.encode("utf-8", "replace") for m in task.messages()] for task in tasks]
    sizes = [
        (sum(len(t) + bare for t in each), task) for each, task in zip(texts, tasks, strict=True)
    ]
    doubtful = sorted((pair for pair in sizes if pair[0] >= limit), key=lambda pair: -pair[0])
    rendered = doubtful[:MOST_RENDERED]
    found = (too_long(env, name, task, codec, limit) for _, task in rendered)
    return [long for long in found if long is not None], len(rendered) == len(doubtful)
