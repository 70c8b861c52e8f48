"""The Gymnasium side of a text environment, over the typed core that the agent loop uses.

Its spaces, of text and of token ids, are equal by value, seedable, picklable. Gymnasium's own Text
space has a fixed alphabet and length; a policy writes what it likes.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.utils import seeding
from numpy.typing import NDArray

from agentrl.aio import Runner, in_loop
from agentrl.envs.scoring import outcome_error
from agentrl.envs.transition import NO_ANSWERS, ToolAnswer, Transition
from agentrl.tokens import Hermes, ToolFormat
from agentrl.types import AssistantTurn, Invalid, Message, Outcome, ToolSchema

_SAMPLE_LENGTH = 32
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABC 0123456789\n{}[]<>\"'.,:;!?+-*/=äß你😀"


class TextSpace(Space[str]):
    """Any str."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """No: text has no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short text of letters, digits, brackets and what else breaks naive code."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH))
        places = self.np_random.integers(len(_ALPHABET), size=length)
        return "".join(_ALPHABET[int(i)] for i in places)

    def contains(self, x: Any) -> bool:
        """True for every str."""
        return isinstance(x, str)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Texts are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The inverse of `to_jsonable`."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    def __hash__(self) -> int:
        return hash(TextSpace)

    def __repr__(self) -> str:
        return "TextSpace()"


class TokenSpace(Space[tuple[int, ...]]):
    """Any sequence of ids below the vocabulary size."""

    def __init__(self, vocab_size: int, seed: int | np.random.Generator | None = None) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}, expected at least 1")
        self.vocab_size = vocab_size
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """No: a sequence of tokens has no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> tuple[int, ...]:
        """A short sequence of uniform ids."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH))
        ids: NDArray[np.int64] = self.np_random.integers(self.vocab_size, size=length)
        return tuple(int(i) for i in ids)

    def contains(self, x: Any) -> bool:
        """True for sequences and one-dimensional arrays of ids that exist."""
        if isinstance(x, np.ndarray):
            array = cast("NDArray[np.generic]", x)
            integers = np.issubdtype(array.dtype, np.integer)
            return array.ndim == 1 and integers and self._are_ids_in_vocabulary(array)
        if not isinstance(x, Sequence) or isinstance(x, str | bytes):
            return False
        ids = cast("Sequence[object]", x)
        integers = all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids)
        return integers and self._are_ids_in_vocabulary(ids)

    def _are_ids_in_vocabulary(self, ids: Any) -> bool:
        return all(0 <= i < self.vocab_size for i in ids)

    def to_jsonable(self, sample_n: Iterable[tuple[int, ...]]) -> list[list[int]]:
        """Lists of plain ints."""
        return [[int(i) for i in ids] for ids in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[tuple[int, ...]]:
        """The inverse of `to_jsonable`."""
        return [tuple(int(i) for i in ids) for ids in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSpace) and other.vocab_size == self.vocab_size

    def __hash__(self) -> int:
        return hash((TokenSpace, self.vocab_size))

    def __repr__(self) -> str:
        return f"TokenSpace({self.vocab_size})"


T = TypeVar("T")

Info = dict[str, Any]
Step = tuple[str, float, bool, bool, Info]


class GymSide(gymnasium.Env[str, str]):
    """`reset`, `step` and `close`, sync and async; a subclass plays the episode."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's declaration)

    text_format: ToolFormat = Hermes()
    """How `step` finds the calls in what a model wrote."""

    def __init__(self) -> None:
        self.action_space = TextSpace()
        self.observation_space = TextSpace()
        self.is_open = False
        """True from reset to teardown."""
        self._runner = Runner()
        self._begun_in: asyncio.AbstractEventLoop | None = None
        """The loop that the episode was begun in."""

    @property
    def tool_schemas(self) -> tuple[ToolSchema, ...]:
        """The tools as the model sees them."""
        raise NotImplementedError

    async def areset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        """Begin an episode."""
        raise NotImplementedError

    async def advance(
        self, turn: AssistantTurn, known: Mapping[str, ToolAnswer] = NO_ANSWERS
    ) -> Transition:
        """Play one turn."""
        raise NotImplementedError

    async def ascore(self) -> Outcome:
        """Score the stopped episode."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Tear down the episode, if there is one."""
        raise NotImplementedError

    async def astep(self, turn: AssistantTurn) -> Step:
        """Play one turn; the last one's reward includes the score.

        Raises:
            EpisodeError: The world or the verifier failed: there is no reward.
        """
        transition = await self.advance(turn)
        reward, outcome = transition.reward, None
        if transition.stop is not None:
            outcome = await self.ascore()
            if isinstance(outcome, Invalid):
                raise outcome_error(outcome)
            reward += outcome.value
        truncated = transition.stop is not None and transition.stop.truncated
        terminated = transition.stop is not None and not truncated
        info = {
            "messages": transition.messages,
            "stop": transition.stop,
            "outcome": outcome,
            "parts": dict(transition.parts),
        }
        return text_of(transition.messages), reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """`areset` for plain code, in a notebook too."""
        begun = self.run_blocking(self.areset(seed=seed, options=options))
        _ = self.np_random  # Gymnasium's checker looks for it
        return begun

    def step(self, action: str) -> Step:
        """Parse what a model wrote and play it; for plain code, in a notebook too."""
        return self.run_blocking(self.astep(self.text_format.parse_text(action, self.tool_schemas)))

    def close(self) -> None:
        """`aclose` for plain code, in a notebook too; a second call does nothing."""
        if self.is_open:
            self.run_blocking(self.aclose())
        self._runner.close()

    def run_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; refused where the episode waits for the loop that runs here."""
        if self.is_open and in_loop() and asyncio.get_running_loop() is self._begun_in:
            coroutine.close()
            raise RuntimeError(
                "the episode was begun by areset in the event loop that runs here, which reset, "
                "step and close would hold; await areset, astep and aclose instead"
            )
        return self._runner.run(coroutine)

    def seed_rng(self, seed: int | None) -> None:
        """Seed `np_random` as Gymnasium does; None leaves the generator as it is."""
        super().reset(seed=None if self._defer_seeding_of_np_random(seed) else seed)

    def _defer_seeding_of_np_random(self, seed: int | None) -> bool:
        """Keep a sound seed for `np_random`: to make a generator costs more than most resets."""
        sound = isinstance(seed, int) and seed >= 0
        if sound:
            self._np_random, self._np_random_seed = None, seed
        return sound

    @property
    def np_random(self) -> np.random.Generator:
        """The generator that the last `reset` seeded."""
        if self._np_random is None:
            self._np_random, self._np_random_seed = seeding.np_random(self._np_random_seed)
        return self._np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random, self._np_random_seed = value, -1


def text_of(messages: Sequence[Message]) -> str:
    """Messages as the observation of a text environment."""
    return "\n".join(message.content for message in messages)
