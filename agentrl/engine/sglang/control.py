"""The control plane of one server: state, pausing, weights. Small calls, so httpx will do."""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httpx

from agentrl.engine.sglang.response import error_text
from agentrl.errors import EngineError

KEY = "AGENTRL_SGLANG_KEY"
ADMIN_KEY = "AGENTRL_SGLANG_ADMIN_KEY"
"""Environment variables, so that no key reaches a configuration, a log or a run directory."""
OLDEST = (0, 5, 20)
"""Older servers do not say which weights a token was sampled under."""
BEYOND = (0, 6)
"""Nobody has seen how these talk."""
_SESSIONS_SINCE = (0, 5, 21)

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True, slots=True)
class Keys:
    """What a server asks for: one key for requests, one for control; empty where it asks none."""

    user: str = field(default="", repr=False)
    admin: str = field(default="", repr=False)

    @classmethod
    def given(cls) -> "Keys":
        """Those of the environment; a server that has one key only takes it for both."""
        user = os.environ.get(KEY, "")
        return cls(user, os.environ.get(ADMIN_KEY) or user)

    @classmethod
    def random(cls) -> "Keys":
        """New ones that nobody else has."""
        return cls(secrets.token_hex(32), secrets.token_hex(32))

    def headers(self, *, admin: bool = False) -> dict[str, str]:
        """The header of a request, or of a control call; it is sent, and shown nowhere."""
        key = self.admin if admin else self.user
        return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What a server says of itself."""

    version: str
    weight_version: str
    model_path: str
    dtype: str
    tp_size: int
    dp_size: int
    kv_tokens: int
    longest_prompt: int
    """Tokens; it is shorter than the context, and than the cache."""
    lags: bool
    """A token is booked a step after it was sampled, with the version of then."""
    quirks: tuple[str, ...]
    """Settings that bias or break training, as `name=value`."""

    @property
    def has_sessions(self) -> bool:
        """True if weight updates go between begin and end, as they must since 0.5.21."""
        return _parse_version_numbers(self.version) >= _SESSIONS_SINCE


def _parse_version_numbers(version: str) -> tuple[int, ...]:
    parts: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


_HARMFUL: Mapping[str, object] = {"preferred_sampling_params": None, "quantization": None}


class Control:
    """Calls to one server; each raises EngineError with the server's reason."""

    def __init__(self, url: str, keys: Keys, *, timeout_s: float = 60.0) -> None:
        self.url = url
        self._keys = keys
        self._http = httpx.AsyncClient(base_url=url, timeout=timeout_s, headers=keys.headers())
        self._clocks: set[asyncio.Timeout] = set()

    def let_go(self) -> None:
        """End the calls that run: nobody will answer them."""
        now = asyncio.get_running_loop().time()
        while self._clocks:
            self._clocks.pop().reschedule(now)

    async def healthy(self, timeout_s: float = 10.0) -> bool:
        """True if the server answers its health check, paused or not."""
        try:
            return (await self._http.get("/health", timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def info(self) -> Info:
        """What the server is.

        Raises EngineError for a version that is not supported.
        """
        said = _as_json_object(await self._request_json("GET", "/server_info", admin=False))
        version = str(said.get("version"))
        if not OLDEST <= _parse_version_numbers(version) < BEYOND:
            oldest, beyond = (".".join(map(str, numbers)) for numbers in (OLDEST, BEYOND))
            raise EngineError(
                f"the server at {self.url} is SGLang {version}, expected {oldest} or newer, which "
                f"tells the weight version of each token, and older than {beyond}"
            )
        quirks = tuple(
            f"{name}={said.get(name)}"
            for name, expected in _HARMFUL.items()
            if (said.get(name) or expected) != expected
        )
        return Info(
            version=version,
            weight_version=str(said.get("weight_version")),
            model_path=str(said.get("model_path")),
            dtype=str(said.get("dtype")),
            tp_size=_read_integer_field(said, "tp_size"),
            dp_size=_read_integer_field(said, "dp_size"),
            kv_tokens=_read_integer_field(said, "max_total_num_tokens"),
            longest_prompt=_read_integer_field(said, "max_req_input_len"),
            lags=not said.get("disable_overlap_schedule"),
            quirks=quirks,
        )

    async def abort(self, rid: str) -> None:
        """End a running request; it answers with what it has."""
        await self._request_json("POST", "/abort_request", {"rid": rid, "abort_all": False})

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling."""
        await self._request_json("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on."""
        await self._request_json("POST", "/continue_generation", {})

    async def release(self, tags: Sequence[str]) -> None:
        """Give up memory; the server must be paused, and nothing may run."""
        await self._request_json("POST", "/release_memory_occupation", {"tags": list(tags)})

    async def take_back(self, tags: Sequence[str]) -> None:
        """Take it again; a server ends at a tag that was not released."""
        await self._request_json("POST", "/resume_memory_occupation", {"tags": list(tags)})

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Forget all keys and values, once nothing runs."""
        await self._request_json("POST", f"/flush_cache?timeout={timeout_s:g}", {})

    async def begin_update(self) -> None:
        """Open a weight update."""
        await self._request_json("POST", "/begin_weight_update", {"selector": "all"})

    async def end_update(self) -> None:
        """Close a weight update."""
        await self._request_json("POST", "/end_weight_update", {})

    async def set_version(self, version: int) -> None:
        """Name the weights that are loaded."""
        body = {"new_version": str(version), "abort_all_requests": False}
        await self._request_json("POST", "/update_weight_version", body)

    async def tokenize(self, text: str) -> Sequence[object]:
        """The server's ids of a text."""
        body = {"model": "", "prompt": text, "add_special_tokens": False}
        said = _as_json_object(await self._request_json("POST", "/tokenize", body, admin=False))
        tokens = said.get("tokens")
        return cast("Sequence[object]", tokens) if isinstance(tokens, list) else ()

    async def truncated(self, ids: Sequence[int]) -> Mapping[str, object]:
        """What is said of one token when sampling keeps the likeliest one only."""
        sampling = {"max_new_tokens": 1, "temperature": 1.0, "top_k": 1}
        wanted = {"return_logprob": True, "return_sampling_mask": True}
        body = {"input_ids": ids, "sampling_params": sampling, **wanted}
        said = _as_json_object(await self._request_json("POST", "/generate", body, admin=False))
        return _as_json_object(said.get("meta_info"))

    async def first_rows(self, name: str, rows: int) -> Sequence[object] | None:
        """The first rows of a weight, nested as its shape is; None if this model cannot be read."""
        body = {"name": name, "truncate_size": rows}
        try:
            return cast(
                "Sequence[object]", await self._request_json("POST", "/get_weights_by_name", body)
            )
        except EngineError as error:
            if "Get parameter by name failed" not in str(error):
                raise
            return None

    async def checksums(self, skipped: Sequence[str] = ()) -> Sequence[Mapping[str, str]]:
        """For each tensor-parallel rank the digests of its tensors, by the server's own names.

        Leaves out tensors with one of `skipped` in their names.
        """
        body = {"action": "checksum", "skip_tensor_list": list(skipped)}
        said = _as_json_object(await self._request_json("POST", "/weights_checker", body))
        found: dict[int, Mapping[str, str]] = {}
        for one in cast("Sequence[Mapping[str, Any]]", said.get("ranks") or ()):
            found[one["parallelism_info"][0]["tp_rank"]] = one["checksums"]
        return [found[rank] for rank in sorted(found)]

    async def send(self, path: str, body: Mapping[str, object], *, timeout_s: float) -> None:
        """A call that says by `success` whether it worked."""
        said = _as_json_object(await self._request_json("POST", path, body, timeout_s=timeout_s))
        if said.get("success") is False:
            raise EngineError(f"the SGLang server at {self.url} refused: {said.get('message')}")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _request_json(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        timeout_s: float | None = None,
        admin: bool = True,
    ) -> object:
        timeout = self._http.timeout if timeout_s is None else timeout_s
        headers = self._keys.headers(admin=admin)
        clock = asyncio.timeout(None)
        try:
            async with clock:
                self._clocks.add(clock)
                response = await self._http.request(
                    method, path, json=body, timeout=timeout, headers=headers
                )
        except (httpx.HTTPError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise EngineError(
                f"the SGLang server at {self.url} did not do {path}: {what}"
            ) from error
        finally:
            self._clocks.discard(clock)
        if response.status_code != 200:
            text = error_text(response.status_code, response.content)
            if response.status_code in (401, 403):
                text += f"; set {ADMIN_KEY} to its admin key, or {KEY} if it has one key only"
            raise EngineError(f"the SGLang server at {self.url} refused {path}: {text}")
        try:
            return response.json() if response.content else {}
        except ValueError:
            return response.text


def _as_json_object(said: object) -> Mapping[str, object]:
    """A JSON object's fields; none for any other answer."""
    return cast("Mapping[str, object]", said) if isinstance(said, dict) else {}


def _read_integer_field(said: Mapping[str, object], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int):
        raise EngineError(
            f"/server_info gives {name} as {value!r}, expected a number; this is no SGLang server"
        )
    return value
