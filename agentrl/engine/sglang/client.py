"""One server's `/generate`, token ids in and token ids out: the path that every turn takes."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.engine.servers.answer import RequestShape
from agentrl.engine.servers.client import ServerClient, new_rid
from agentrl.engine.sglang.control import KEY
from agentrl.engine.sglang.install import SGLANG
from agentrl.engine.sglang.response import parse, parse_scores
from agentrl.types import Completion, Sampling

_TRUTH: Final = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "skip_special_tokens": False}
"""Nothing is truncated, whatever the model's own generation settings say."""


def request_body(
    ids: Sequence[int],
    sampling: Sampling,
    rid: str,
    cache_key: str | None = None,
    adapter: str | None = None,
    *,
    experts: bool = False,
) -> bytes:
    """The body of one request; these keys and no others.

    Prefixes are reused among requests of one `cache_key` and one `adapter`. With `experts` the
    answer has those of each token.
    """
    parameters: dict[str, object] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": sorted(sampling.stop_ids),
        **_TRUTH,
    }
    return orjson.dumps(
        {
            "input_ids": ids,
            "sampling_params": parameters,
            "rid": rid,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
            "extra_key": cache_key,
            "lora_path": adapter,
            **({"return_routed_experts": True} if experts else {}),
        }
    )


class GenerateClient(ServerClient):
    """Connections to one server. Every call runs on the event loop of the first one."""

    title = SGLANG.title
    path = "/generate"
    key_hint = f"set {KEY} to its API key"

    def __init__(
        self, url: str, headers: Mapping[str, str], *, vocab_size: int, experts: int = 0
    ) -> None:
        """`experts` is how many the model sends a token to; the server has to record them."""
        super().__init__(url, headers, vocab_size=vocab_size)
        self._experts = experts

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        rid: str,
        cache_key: str | None = None,
        adapter: str | None = None,
    ) -> tuple[Completion, int | None]:
        """One completion of checked ids, and the id that stopped it; no deadline of its own.

        Raises:
            Busy: the server's queue is full.
            Unreachable: the connection failed.
            EngineError: the server refused the request, or its answer is wrong.
        """
        body = request_body(ids, sampling, rid, cache_key, adapter, experts=self._experts > 0)
        asked = RequestShape(len(ids), sampling.max_new_tokens, self.vocab_size, self._experts)
        return parse(await self.post(body), asked)

    async def score(self, ids: Sequence[int], start: int) -> tuple[NDArray[np.float32], str]:
        """The logprobs of the ids behind the first `start`, and the version of the weights.

        Nothing is sampled; the server scales no prompt by a temperature. Raises as `generate` does.
        """
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0},
            "rid": new_rid(),
            "return_logprob": True,
            "logprob_start_len": start - 1,
            "stream": False,
        }
        answer = await self.post(orjson.dumps(body))
        return parse_scores(answer, ids, start, self.vocab_size)
