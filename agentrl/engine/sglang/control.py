"""The control plane of one SGLang server."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.engine.servers.control import (
    Info,
    PauseMode,
    ServerControl,
    as_json_object,
    parse_version_numbers,
)
from agentrl.engine.sglang.install import SGLANG
from agentrl.errors import EngineError

KEY = "AGENTRL_SGLANG_KEY"
ADMIN_KEY = "AGENTRL_SGLANG_ADMIN_KEY"
"""Environment variables, so that no key reaches a configuration, a log or a run directory."""
OLDEST = (0, 5, 20)
"""Older servers do not say which weights a token was sampled under."""
BEYOND = (0, 6)
"""Nobody has seen how these talk."""
_HARMFUL: Mapping[str, object] = {"preferred_sampling_params": None, "quantization": None}


class Control(ServerControl):
    """Calls to one server; each raises EngineError with the server's reason."""

    title = SGLANG.title
    key_hint = f"set {ADMIN_KEY} to its admin key, or {KEY} if it has one key only"
    settings = "engine.sglang"
    temperature_hint = "start the server without SGLANG_RETURN_ORIGINAL_LOGPROB"

    async def info(self) -> Info:
        """What the server is.

        Raises EngineError for a version that is not supported.
        """
        said = as_json_object(await self.request_json("GET", "/server_info", admin=False))
        version = str(said.get("version"))
        if not OLDEST <= parse_version_numbers(version) < BEYOND:
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
        await self.request_json("POST", "/abort_request", {"rid": rid, "abort_all": False})

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling."""
        await self.request_json("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on."""
        await self.request_json("POST", "/continue_generation", {})

    async def release(self, tags: Sequence[str]) -> None:
        """Give up memory; the server must be paused, and nothing may run."""
        await self.request_json("POST", "/release_memory_occupation", {"tags": list(tags)})

    async def take_back(self, tags: Sequence[str]) -> None:
        """Take it again; a server ends at a tag that was not released."""
        await self.request_json("POST", "/resume_memory_occupation", {"tags": list(tags)})

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Forget all keys and values, once nothing runs."""
        await self.request_json("POST", f"/flush_cache?timeout={timeout_s:g}", {})

    async def begin_update(self) -> None:
        """Open a weight update."""
        await self.request_json("POST", "/begin_weight_update", {"selector": "all"})

    async def end_update(self) -> None:
        """Close a weight update."""
        await self.request_json("POST", "/end_weight_update", {})

    async def set_version(self, version: int) -> None:
        """Name the weights that are loaded."""
        body = {"new_version": str(version), "abort_all_requests": False}
        await self.request_json("POST", "/update_weight_version", body)

    async def tokenize(self, text: str) -> Sequence[object]:
        """The server's ids of a text."""
        body = {"model": "", "prompt": text, "add_special_tokens": False}
        said = as_json_object(await self.request_json("POST", "/tokenize", body, admin=False))
        tokens = said.get("tokens")
        return cast("Sequence[object]", tokens) if isinstance(tokens, list) else ()

    async def describe_truncation(self, ids: Sequence[int]) -> str:
        """What is said of a token when sampling keeps the likeliest one only."""
        sampling = {"max_new_tokens": 1, "temperature": 1.0, "top_k": 1}
        wanted = {"return_logprob": True, "return_sampling_mask": True}
        body = {"input_ids": ids, "sampling_params": sampling, **wanted}
        said = as_json_object(await self.request_json("POST", "/generate", body, admin=False))
        meta = as_json_object(said.get("meta_info"))
        rows = cast("Sequence[Sequence[object]]", meta.get("output_token_logprobs") or [[0.0]])
        kind = "those after it" if rows[0][0] == 0.0 else "those before it"
        told = "told" if "output_token_sampling_mask" in meta else "not told"
        return f"logprobs are {kind}, the tokens it keeps are {told}"

    async def first_rows(self, name: str, rows: int) -> Sequence[object] | None:
        """The first rows of a weight, nested as its shape is; None if this model cannot be read."""
        body = {"name": name, "truncate_size": rows}
        try:
            return cast(
                "Sequence[object]", await self.request_json("POST", "/get_weights_by_name", body)
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
        said = as_json_object(await self.request_json("POST", "/weights_checker", body))
        found: dict[int, Mapping[str, str]] = {}
        for one in cast("Sequence[Mapping[str, Any]]", said.get("ranks") or ()):
            found[one["parallelism_info"][0]["tp_rank"]] = one["checksums"]
        return [found[rank] for rank in sorted(found)]

    async def send(self, path: str, body: Mapping[str, object], *, timeout_s: float) -> None:
        """A call that says by `success` whether it worked."""
        said = as_json_object(await self.request_json("POST", path, body, timeout_s=timeout_s))
        if said.get("success") is False:
            raise EngineError(f"the SGLang server at {self.url} refused: {said.get('message')}")


def _read_integer_field(said: Mapping[str, object], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int):
        raise EngineError(
            f"/server_info gives {name} as {value!r}, expected a number; this is no SGLang server"
        )
    return value
