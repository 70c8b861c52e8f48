"""One server's `/generate`, token ids in and token ids out: the path that every turn takes.

aiohttp and orjson, since they cost a tenth of the CPU time of httpx with long prompts. What goes
wrong is told apart by whether another try may help: `Busy` and `Unreachable` are worth one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import uuid4

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.engine.sglang.response import RequestShape, error_text, parse, parse_scores
from agentrl.errors import EngineError
from agentrl.types import Completion, Sampling

CONNECT_S = 10.0
_KEEPALIVE_S = 3.0  # the server closes idle connections after 5 s
_TRUTH: Final = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "skip_special_tokens": False}
"""Nothing is truncated, whatever the model's own generation settings say."""


class Busy(EngineError):
    """The server's queue is full; it is worth waiting."""


class Unreachable(EngineError):
    """The connection failed; the server may be gone."""


def new_rid() -> str:
    """A request id: all of one length, since the server aborts every id that begins with one."""
    return uuid4().hex


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


class GenerateClient:
    """Connections to one server. Every call runs on the event loop of the first one."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, vocab_size: int, experts: int = 0
    ) -> None:
        """`headers` may hold a key: they are sent, and shown nowhere.

        `experts` is how many the model sends a token to; the server has to record them.
        """
        self.url = url
        self._path = f"{url}/generate"
        self._headers = {"Content-Type": "application/json", **headers}
        self._vocab_size = vocab_size
        self._experts = experts
        self._session: aiohttp.ClientSession | None = None

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
        asked = RequestShape(len(ids), sampling.max_new_tokens, self._vocab_size, self._experts)
        return parse(await self._post_to_generate(body), asked)

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
        answer = await self._post_to_generate(orjson.dumps(body))
        return parse_scores(answer, ids, start, self._vocab_size)

    async def _post_to_generate(self, body: bytes) -> bytes:
        """What the server answers with status 200."""
        try:
            async with self._get_or_open_http_session().post(
                self._path, data=body, headers=self._headers
            ) as response:
                answer = await response.read()
                status = response.status
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise Unreachable(f"the SGLang server at {self.url} cut off: {what}") from error
        if status == 200:
            return answer
        text = f"the SGLang server at {self.url} answered {error_text(status, answer)}"
        if status == 503:
            raise Busy(text)
        if status in (401, 403):
            text += "; set AGENTRL_SGLANG_KEY to its API key"
        raise EngineError(text)

    async def aclose(self) -> None:
        """Close the connections; what still runs on them is aborted by the server."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # lets the transports close

    def _get_or_open_http_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session
