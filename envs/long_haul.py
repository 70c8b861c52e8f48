"""`long_haul`: facts on many pages, read one by one, that have to be carried past the context."""

import hashlib
import re

import numpy as np
from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.context import REQUEST, Summarise
from agentrl.envs.splits import require_split, split_of
from agentrl.envs.toolenv import ToolEnv
from agentrl.tools import tool
from agentrl.types import Agent, AssistantTurn, EpisodeView, Task, ToolCall
from agentrl.verifiers import ExactMatch

NAMES = ("city", "book", "key")
END = "That is all."
NOTHING = "None."
_FACT = re.compile(r"The (?:city|book|key) is \d\d\.")
_OTHERS = (
    "There is one file on the list, and no name is in it.",
    "Now look left and right, then open the same file again.",
    "You know that it will turn out well for the user.",
    "When it is done, add a line to the text and return.",
    "The first item is on top, and the same order is below.",
    "Then say what you want to have, or change the list.",
)
_FORGETFUL = 0.6
"""The share of the expert's summaries that lose everything: what reinforcement has to improve."""


class LongHaul(ToolEnv):
    """Three numbers on some of the pages; the answer is all of them, in the order of the task.

    The three numbers together belong to one split, wherever they stand.
    """

    class Config(BaseConfig):
        """Parameters of the tasks."""

        pages: int = Field(default=16, ge=3, le=100, description="pages to read")
        sentences: int = Field(default=2, ge=1, le=100, description="other sentences on each page")

    config: Config

    system = "Read all pages. Reply with city, book, key."
    max_turns = 128
    context = Summarise(at=224)
    verifier = ExactMatch()

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str, config: Config) -> Task:
        """Three numbers that belong to the split, and the pages."""
        require_split(split)
        numbers = _numbers(rng)
        while split_of("long_haul", *numbers) != split:
            numbers = _numbers(rng)
        texts = [
            " ".join(_OTHERS[i] for i in rng.integers(len(_OTHERS), size=config.sentences))
            for _ in range(config.pages)
        ]
        places = rng.choice(config.pages, size=len(NAMES), replace=False)
        for name, number, place in zip(NAMES, numbers, places.tolist(), strict=True):
            texts[place] += f" The {name} is {number}."
        texts[-1] += f" {END}"
        answer = " ".join(map(str, numbers))
        return Task(prompt="What are they?", answer=answer, data={"pages": texts})

    async def setup(self) -> None:
        """Begin before the first page."""
        self.next_page = 0

    @tool
    async def read(self) -> str:
        """Read on."""
        pages = self.task.data["pages"]
        page = self.next_page
        self.next_page += 1
        return str(pages[page]) if page < len(pages) else END

    @classmethod
    def expert(cls) -> Agent:
        """Reads to the end and knows the answer; most of its summaries forget what was read."""
        return _Expert()


def _numbers(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(10, 100, size=len(NAMES)))


class _Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        last = view.messages[-1].content
        if last.endswith(REQUEST):
            return AssistantTurn(text=self._summary(view))
        if last.endswith(END):
            return AssistantTurn(text=view.task.answer)
        return AssistantTurn(calls=(ToolCall(name="read", id="call_0"),))

    def _summary(self, view: EpisodeView) -> str:
        facts = _FACT.findall(" ".join(message.content for message in view.messages))
        seed = f"{view.task.id} {facts} {len(view.messages)}".encode()
        chance = int.from_bytes(hashlib.blake2b(seed, digest_size=4).digest()) / 2**32
        return " ".join(facts) if facts and chance >= _FORGETFUL else NOTHING
