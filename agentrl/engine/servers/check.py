"""Questions to a server before anything is trained on its answers.

Each gives a row: what was asked, whether the answer is fit for training, what it was or what to
change. The same rows are `agentrl engine check URL`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.engine.protocol import check_request
from agentrl.engine.servers.client import new_rid
from agentrl.engine.servers.router import ServerState
from agentrl.errors import ConfigError, EngineError
from agentrl.tokens import Tokenizer
from agentrl.types import Completion, Sampling

Reference = Callable[[Sequence[int], float], Sequence[float]]
"""The trainer's logprobs of ids 1, 2, ... given those before, at a temperature."""

TEXT = "Compute 12 * (7 + 30) and say why, in one line; then call the tool.\n"
TOLERANCES = {"float32": 1e-4}
"""Largest mean difference of logprobs, by the server's number format."""
_OTHER_TOLERANCE = 0.05
_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheckRow:
    """One answer."""

    name: str
    ok: bool
    detail: str


async def check_server(
    slot: ServerState,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    reference: Reference | None,
    in_place: bool = False,
) -> list[EngineCheckRow]:
    """All questions to one server; it must not be in use. Never raises for a bad answer.

    `in_place`: updates will not flush the cache, so prefixes must be kept apart by version.
    """
    asker = _Asker(slot, tokenizer, vocab_size, reference, in_place)
    rows: list[EngineCheckRow] = []
    for name, ask in asker.questions():
        try:
            ok, detail = await ask()
        except EngineError as error:
            ok, detail = False, str(error)
        rows.append(EngineCheckRow(name=name, ok=ok, detail=detail))
        if not ok and name in ("settings", "tokenizer", "ids"):
            break  # the others could only fail, or harm the server
    return rows


def refuse_unfit_server(slot: ServerState, rows: Sequence[EngineCheckRow]) -> None:
    """Raise ConfigError with what is unfit for training."""
    wrong = [f"{row.name}: {row.detail}" for row in rows if not row.ok]
    if wrong:
        raise ConfigError(f"{slot.name} would bias training; " + "; ".join(wrong))


class _Asker:
    def __init__(
        self,
        slot: ServerState,
        tokenizer: Tokenizer,
        vocab_size: int,
        reference: Reference | None,
        in_place: bool,
    ) -> None:
        self._slot = slot
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._reference = reference
        self._in_place = in_place
        self._ids = tokenizer.encode(TEXT, specials=False)

    def questions(self) -> list[tuple[str, Callable[[], Awaitable[tuple[bool, str]]]]]:
        return [
            ("settings", self._probe_server_settings),
            ("tokenizer", self._compare_tokenizer_with_server),
            ("ids", self._probe_sampled_ids),
            ("versions", self._probe_token_versions),
            ("logprobs", lambda: self._compare_logprobs_with_trainer(1.0)),
            ("temperature", lambda: self._compare_logprobs_with_trainer(0.5)),
            ("truncation", self._probe_truncation),
            ("cache", self._probe_prefix_cache),
        ]

    async def _probe_server_settings(self) -> tuple[bool, str]:
        info = await self._slot.control.info()
        if info.quirks:
            return False, f"start the server without {', '.join(info.quirks)}"
        return True, (
            f"{self._slot.control.title} {info.version}, {info.dtype}, tp {info.tp_size}, "
            f"dp {info.dp_size}, cache of {info.kv_tokens:,} tokens"
        )

    async def _compare_tokenizer_with_server(self) -> tuple[bool, str]:
        ours = self._tokenizer
        text = TEXT + "".join(ours.added_tokens)
        theirs = await self._slot.control.tokenize(text)
        mine = ours.encode(text, specials=True)
        if theirs != mine:
            return False, (
                f"a text of {len(mine)} tokens is {len(theirs)} there, or others; serve the model "
                "that is trained"
            )
        return True, f"{len(mine)} tokens of text and {len(ours.added_tokens)} added ones agree"

    async def _probe_sampled_ids(self) -> tuple[bool, str]:
        completion = await self._sample_trial_completion(1.0)
        return True, f"{len(completion.ids_T)} sampled ids with their logprobs"

    async def _probe_token_versions(self) -> tuple[bool, str]:
        completion = await self._sample_trial_completion(1.0)
        return True, f"each token has its weight version: {completion.versions_T[0]}"

    async def _compare_logprobs_with_trainer(self, temperature: float) -> tuple[bool, str]:
        if self._reference is None:
            return True, "not compared: there is no trainer"
        completion = await self._sample_trial_completion(temperature)
        gap = self._measure_logprob_distance(completion, temperature)
        most = TOLERANCES.get((await self._slot.control.info()).dtype, _OTHER_TOLERANCE)
        if gap <= most:
            return True, f"the trainer's at temperature {temperature:g} within {gap:.1e} on average"
        if temperature != 1 and self._measure_logprob_distance(completion, 1.0) <= most:
            hint = self._slot.control.temperature_hint
            return False, f"they are those before the temperature; {hint}"
        return False, (
            f"the trainer's at temperature {temperature:g} differ by {gap:.3g} on average, "
            f"expected at most {most:g}; serve the model that is trained, unquantized"
        )

    async def _probe_truncation(self) -> tuple[bool, str]:
        how = await self._slot.control.describe_truncation(self._ids)
        return True, f"{how}; agentrl asks for none"

    async def _probe_prefix_cache(self) -> tuple[bool, str]:
        await self._sample_trial_completion(1.0)
        kept = (await self._sample_trial_completion(1.0)).cached_tokens
        apart = kept and not (await self._sample_trial_completion(1.0, new_rid())).cached_tokens
        await self._slot.control.flush()
        left = (await self._sample_trial_completion(1.0)).cached_tokens
        if left:
            return False, f"a flush left {left} tokens in the prefix cache"
        if kept and self._in_place and not apart:
            return False, (
                "prefixes of different versions are not kept apart; set "
                f"{self._slot.control.settings}.pause to retract or abort"
            )
        how = "a flush or another version ends that" if apart else "a flush ends that"
        return True, f"{kept} of {len(self._ids)} prompt tokens were reused; {how}"

    async def _sample_trial_completion(
        self, temperature: float, cache_key: str | None = None
    ) -> Completion:
        sampling = Sampling(max_new_tokens=_TOKENS, temperature=temperature)
        check_request(self._ids, sampling, vocab_size=self._vocab_size, context_length=2**31)
        completion, _ = await self._slot.client.generate(self._ids, sampling, new_rid(), cache_key)
        return completion

    def _measure_logprob_distance(self, completion: Completion, temperature: float) -> float:
        assert self._reference is not None
        ids = [*self._ids, *completion.ids_T.tolist()]
        ours = np.array(self._reference(ids, temperature))[len(self._ids) - 1 :]
        return float(np.abs(ours - completion.logprobs_T).mean())
