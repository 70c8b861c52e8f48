"""`TokenEnv`: a text environment for agents that read and write token ids."""

from collections.abc import Sequence
from typing import Any

import gymnasium

from agentrl.envs.gym_adapter import TokenSpace
from agentrl.envs.toolenv import ToolEnv
from agentrl.tokens import Renderer, Tokenizer, ToolFormat, choose_format
from agentrl.types import AssistantTurn, StopReason

Ids = tuple[int, ...]
Info = dict[str, Any]


class TokenEnv(gymnasium.Env[Ids, Ids]):
    """Observations are the ids that the environment adds, actions the ids that a model sampled.

    The first observation is the whole prompt. An action is one completion, with its stop token or
    without; the ids of an episode are its observations and actions one after the other.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's declaration)

    def __init__(
        self, env: ToolEnv, tokenizer: Tokenizer, *, tool_format: ToolFormat | None = None
    ) -> None:
        """Wrap `env`, which belongs to the wrapper from now on.

        Args:
            env: the environment.
            tokenizer: renders observations by its chat template.
            tool_format: parses actions; default: the one that fits the tokenizer.
        """
        self.env = env
        self._format = tool_format or choose_format(tokenizer, None)
        self._renderer = Renderer(tokenizer, env.tool_schemas, tool_format=self._format)
        self.action_space = TokenSpace(tokenizer.vocab_size)
        self.observation_space = TokenSpace(tokenizer.vocab_size)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ids, Info]:
        """Begin an episode; the observation is its prompt."""
        super().reset(seed=seed)
        _, info = await self.env.areset(seed=seed, options=options)
        return tuple(self._renderer.prompt(self.env.conversation)), info

    async def astep(self, action: Sequence[int]) -> tuple[Ids, float, bool, bool, Info]:
        """Parse a completion and play it; after the last turn the observation is empty."""
        turn = self._parse_turn_from_ids([int(i) for i in action])
        _, reward, terminated, truncated, info = await self.env.astep(turn)
        going_on = not (terminated or truncated)
        seen = tuple(self._renderer.observation(info["messages"])) if going_on else ()
        return seen, reward, terminated, truncated, info

    def _parse_turn_from_ids(self, ids: list[int]) -> AssistantTurn:
        stops = self._renderer.stop_ids
        if not ids or ids[-1] not in stops:
            # The parser takes the last id of a turn for the stop token.
            ids = [*ids, min(stops)]
        return self._format.parse(
            ids,
            StopReason.STOP,
            self.env.tool_schemas,
            thinking=self._renderer.opens_thinking,
        )

    async def aclose(self) -> None:
        """Tear down the episode, if there is one."""
        await self.env.aclose()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Ids, Info]:
        """`areset` for plain code, in a notebook too."""
        return self.env.run_blocking(self.areset(seed=seed, options=options))

    def step(self, action: Sequence[int]) -> tuple[Ids, float, bool, bool, Info]:
        """`astep` for plain code, in a notebook too."""
        return self.env.run_blocking(self.astep(action))

    def close(self) -> None:
        """End everything; a second call does nothing."""
        self.env.close()
