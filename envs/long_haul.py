"""`long_haul`: a key on one of many pages, read one by one, that outlives the context."""

import hashlib
import re

import numpy as np
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.context import REQUEST, ContextPolicy, Summarise
from agentrl.envs.tasks import require_split, split_of
from agentrl.envs.toolenv import ToolEnv
from agentrl.types import Agent, AssistantTurn, EpisodeView, Task
from agentrl.verifiers import ExactMatch

NEXT = "read"
END = "It is done."
EARLY = "Read on."
NOTHING = "None."
_KEY = re.compile(r"The key is (\d \w+ \w+)\.")
# Single tokens of the tiny model that stand in no other sentence: it learns to copy one word of a
# kind much sooner than to keep several digits in their order.
_NOUNS, _QUALITIES = (
    ["answer", "book", "calculator", "city", "command", "line", "result", "string", "test", "text"],
    ["false", "finished", "high", "low", "new", "open", "out", "over", "up", "won"],
)
_OTHERS = (
    "There is one file on it.",
    "Open the same file again.",
    "The first item is on it.",
    "The number is not the same.",
    "Read it from left to right.",
    "Go to the left or right.",
    "Then change the order of it.",
    "That is the name of it.",
)
_SENTENCES = 4
"""Of a page."""
_PLACES = 3
"""The key stands on one of so many pages at the beginning, so that it has to be kept for long."""
_FORGETFUL = 0.2
"""The share of the expert's summaries that lose the key, until it has seen the end: what
reinforcement has to improve."""


class LongHaul(ToolEnv):
    """A key stands on one of the first pages; the answer, after the last one, is the key.

    The pages go round: who lost the key may read on at the first page again, if `max_turns` leaves
    room. A key belongs to one split, whatever stands beside it.
    """

    class Config(BaseConfig):
        """Parameters of the tasks."""

        pages: int = Field(default=11, ge=_PLACES, le=250, description="pages to read")

    config: Config

    max_turns = 512
    context: ContextPolicy = Summarise(at=96)
    verifier = ExactMatch()

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """A key that belongs to the split, and the pages."""
        require_split(split)
        key = _draw_digit_noun_and_quality(rng)
        while split_of("long_haul", key) != split:
            key = _draw_digit_noun_and_quality(rng)
        drawn: list[list[int]] = rng.integers(
            len(_OTHERS), size=(config.pages, _SENTENCES)
        ).tolist()
        pages = [[_OTHERS[i] for i in page] for page in drawn]
        pages[int(rng.integers(_PLACES))][int(rng.integers(_SENTENCES))] = f"The key is {key}."
        pages[-1].append(END)
        return Task(
            prompt="Reply read until it is done, then the key.",
            answer=key,
            data={"pages": [" ".join(page) for page in pages]},
        )

    # The hooks are async, so that no episode needs a thread.

    async def setup(self) -> None:
        """Begin before the first page."""
        self.num_read = 0

    async def reply(self, text: str) -> str | None:
        """The next page; None, once all were read: the text is the answer."""
        pages: list[str] = self.task.data["pages"]
        if text.strip() != NEXT:
            return None if self.num_read >= len(pages) else EARLY
        self.num_read += 1
        return pages[(self.num_read - 1) % len(pages)]

    async def state_key(self) -> str:
        """Where the reader is."""
        return str(self.num_read)

    @classmethod
    def expert(cls) -> Agent:
        """Answers where it sees key and end, and reads on until then.

        Some of its summaries lose the key, but none once it has seen the end.
        """
        return _Expert()


def _draw_digit_noun_and_quality(rng: np.random.Generator) -> str:
    digit, noun, quality = rng.integers(10, size=3).tolist()
    return f"{digit} {_NOUNS[noun]} {_QUALITIES[quality]}"


class _Expert:
    """Knows no more than what it is shown."""

    def act(self, view: EpisodeView) -> AssistantTurn:
        shown = " ".join(message.content for message in view.messages)
        key, ended = _KEY.search(shown), END in shown
        if view.messages[-1].content.endswith(REQUEST):
            # The same number for the same text.
            text = (view.task.id + shown).encode()
            chance = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) / 2**32
            forgets = not ended and chance < _FORGETFUL
            facts = [key[0]] if key and not forgets else []
            return AssistantTurn(text=" ".join(facts + [END] * ended) or NOTHING)
        return AssistantTurn(text=key[1] if key and ended else NEXT)
