"""`TeacherServer`: what the model of an SGLang server finds of the tokens that a policy sampled.

    batch ── each row, up to its last sampled token ──▶ /generate, nothing sampled ──▶ reference_N

It stands where a trainer's reference does, and no trainer holds that model. Whatever a server is
asked, it scores prompts at temperature 1.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import zip_longest
from typing import Final

import httpx
import numpy as np
from numpy.typing import NDArray

from agentrl.aio import OutOfTime, run, within
from agentrl.engine.servers.client import Busy, Unreachable
from agentrl.engine.servers.control import Keys
from agentrl.engine.sglang.client import GenerateClient
from agentrl.engine.sglang.control import Control
from agentrl.errors import ConfigError, EngineError, RunError
from agentrl.tokens import Tokenizer
from agentrl.types import Batch

_AT_ONCE: Final = 32
"""Rows that a server is asked about at the same time."""
_TRIES: Final = 4
"""Times that a row is sent to a server that cannot be reached."""
_PAUSE_S: Final = 1.0
"""Between two tries."""
_TRIAL: Final = 16
"""Tokens that are scored before the run begins."""


class TeacherServer:
    """A running server that is asked once about each batch; `check` it before."""

    def __init__(self, url: str, tokenizer: Tokenizer, *, timeout_s: float) -> None:
        """`tokenizer` is the policy's; the answer to a row may take `timeout_s`."""
        self.url = url
        self._tokenizer = tokenizer
        self._timeout_s = timeout_s
        self._version: str | None = None
        """What the first answer called the server's weights."""

    async def check(self, longest: int) -> None:
        """Raise ConfigError unless the server can score `longest` of the policy's tokens."""
        try:
            async with aclosing(Control(self.url, Keys.given("sglang"))) as control:
                taken = (await control.info()).longest_prompt - 1
                if taken < longest:
                    raise EngineError(
                        f"the server at {self.url} takes {taken:,} tokens, but the policy's "
                        f"episodes may have {longest:,}; lower rollout.max_context_tokens"
                    )
                ids = await self._compare_vocabularies(control)
            async with aclosing(self._make_client()) as client:
                await self._score_row(client, ids[:_TRIAL], 1)
        except (EngineError, httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"trainer.reference: {error}") from error

    def with_reference(self, batch: Batch) -> Batch:
        """The batch with the server's logprobs, as `Trainer.with_outputs` gives a model's.

        Raises RunError if they cannot be had.
        """
        try:
            return replace(batch, reference_N=run(self._score_batch(batch)))
        except EngineError as error:
            raise RunError(f"trainer.reference: {error}") from error

    async def _compare_vocabularies(self, control: Control) -> list[int]:
        """The ids of a text with each token in it, which are the same there, or EngineError."""
        ours = self._tokenizer
        texts = [ours.decode([token]) for token in range(ours.vocab_size)]
        text = "\n".join(each for each in texts if "\ufffd" not in each)  # not a part of a letter
        mine = ours.encode(text, specials=True)
        for own, other in zip_longest(mine, await control.tokenize(text)):
            if own != other:
                what = "the end" if own is None else repr(ours.decode([own]))
                raise EngineError(
                    f"the server at {self.url} has another vocabulary than the policy ({what} is "
                    f"{other} there and {own} here); serve a model with the same tokenizer.json"
                )
        return mine

    async def _score_batch(self, batch: Batch) -> NDArray[np.float32]:
        """[N] The logprobs of the trained tokens, 0 elsewhere."""
        reference_N = np.zeros(batch.num_tokens, dtype=np.float32)
        free = asyncio.Semaphore(_AT_ONCE)

        async def score(row: slice) -> None:
            trained = np.flatnonzero(batch.mask_N[row])
            first, end = int(trained[0]), int(trained[-1]) + 1
            async with free:
                scores_T = await self._score_row(client, batch.ids_N[row][:end].tolist(), first)
            reference_N[row][first:end] = scores_T

        async with aclosing(self._make_client()) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for row in map(batch.row, range(batch.num_rows)):
                        if batch.mask_N[row].any():
                            group.create_task(score(row))
            except ExceptionGroup as failed:  # the first failure has cancelled the other rows
                raise failed.exceptions[0] from None
        return np.where(batch.mask_N, reference_N, np.float32(0))

    async def _score_row(
        self, client: GenerateClient, ids: Sequence[int], start: int
    ) -> NDArray[np.float32]:
        """The logprobs of the ids behind the first `start`, by the weights of the first answer."""
        if max(ids) >= self._tokenizer.vocab_size:
            raise EngineError(  # a server may end at an id that its model lacks
                f"the policy sampled id {max(ids)}, which is no token, so no server is asked about "
                "it; give the model's folder"
            )
        try:
            asking = _ask_until_answered(client, ids, start)
            scores_T, version = await within(self._timeout_s, asking)
        except OutOfTime as error:
            raise EngineError(
                f"the server at {self.url} did not score {len(ids)} tokens within "
                f"{self._timeout_s:g} s; raise engine.timeout_s, or let it do less beside"
            ) from error
        self._version = self._version or version
        if version != self._version:
            raise EngineError(
                f"the weights of the server at {self.url} changed from version {self._version} to "
                f"{version}; give a server that nobody trains"
            )
        return scores_T

    def _make_client(self) -> GenerateClient:
        size = self._tokenizer.vocab_size
        return GenerateClient(self.url, Keys.given("sglang").headers(), vocab_size=size)


async def _ask_until_answered(
    client: GenerateClient, ids: Sequence[int], start: int
) -> tuple[NDArray[np.float32], str]:
    """Ask again: without an end if the server is busy, a few times if it cannot be reached."""
    tries = 0
    while True:
        try:
            return await client.score(ids, start)
        except Busy:
            pass
        except Unreachable as error:
            tries += 1
            if tries == _TRIES:
                raise EngineError(f"{error}; start it again, then resume the run") from error
        await asyncio.sleep(_PAUSE_S)
