"""The Gymnasium side of a text environment, over the typed core that the agent loop uses."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from agentrl.aio import Runner, in_loop
from agentrl.envs.scoring import outcome_error
from agentrl.envs.spaces import TextSpace
from agentrl.envs.transition import Transition
from agentrl.tokens import Hermes, ToolFormat
from agentrl.types import AssistantTurn, Invalid, Message, Outcome, ToolSchema

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

    async def advance(self, turn: AssistantTurn) -> Transition:
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
