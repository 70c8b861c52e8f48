"""`long_haul`: two facts on many pages, read one by one, that outlive the context."""

import hashlib
import re

import numpy as np
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.context import REQUEST, ContextPolicy, Summarise
from agentrl.envs.splits import require_split, split_of
from agentrl.envs.toolenv import ToolEnv
from agentrl.types import Agent, AssistantTurn, EpisodeView, Task
from agentrl.verifiers import ExactMatch

NEXT = "read"
END = "That is all."
NOTHING = "None."
_NAMES = ("city", "key")
_FACT = re.compile(r"The (?:city|key) is \d\d\.")
_OTHERS = (
    "There is one file on the list.",
    "Now look left and right.",
    "You know that it is done.",
    "Open the same file again.",
    "The first item is on the right.",
    "Then change the order.",
)
_FORGETFUL = 0.3
"""The share of the expert's summaries that lose everything: what reinforcement has to improve."""


class LongHaul(ToolEnv):
    """A city and a key stand on two of the pages; the answer is both numbers.

    A pair of numbers belongs to one split, wherever they stand.
    """

    class Config(BaseConfig):
        """Parameters of the tasks."""

        pages: int = Field(default=20, ge=2, le=1000, description="pages to read")

    config: Config

    system = "Reply read until that is all. Then reply with city and key."
    max_turns = 2048
    context: ContextPolicy = Summarise(at=96)
    verifier = ExactMatch()

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """Two numbers that belong to the split, and the pages."""
        require_split(split)
        numbers = _numbers(rng)
        while split_of("long_haul", *numbers) != split:
            numbers = _numbers(rng)
        pages = [_OTHERS[int(i)] for i in rng.integers(len(_OTHERS), size=config.pages)]
        places: list[int] = rng.choice(config.pages, size=len(_NAMES), replace=False).tolist()
        for name, number, place in zip(_NAMES, numbers, places, strict=True):
            pages[place] = f"The {name} is {number}."
        pages[-1] += f" {END}"
        answer = " ".join(map(str, numbers))
        return Task(prompt="What are the numbers?", answer=answer, data={"pages": pages})

    # The hooks are async, so that no episode needs a thread.

    async def setup(self) -> None:
        """Begin before the first page."""
        self.page = 0

    async def reply(self, text: str) -> str | None:
        """The next page, or the end of the last one again; None: the text is the answer."""
        if text.strip() != NEXT:
            return None
        pages: list[str] = self.task.data["pages"]
        page, self.page = self.page, self.page + 1
        return pages[page] if page < len(pages) else END

    async def state_key(self) -> str:
        """Where the reader is."""
        return str(self.page)

    @classmethod
    def expert(cls) -> Agent:
        """Reads to the end and knows the answer; some of its summaries forget what was read."""
        return _Expert()


def _numbers(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(10, 100, size=len(_NAMES)))


class _Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        last = view.messages[-1].content
        if last.endswith(REQUEST):
            return AssistantTurn(text=self._summary(view))
        return AssistantTurn(text=view.task.answer if last.endswith(END) else NEXT)

    def _summary(self, view: EpisodeView) -> str:
        facts = _FACT.findall(" ".join(message.content for message in view.messages))
        seed = f"{view.task.id} {facts} {len(view.messages)}".encode()
        chance = int.from_bytes(hashlib.blake2b(seed, digest_size=4).digest()) / 2**32
        return " ".join(facts) if facts and chance >= _FORGETFUL else NOTHING
