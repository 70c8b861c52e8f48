"""The control plane of one vLLM server, with the methods of `shims/agentrl_worker.py`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.engine.servers.control import (
    Info,
    PauseMode,
    ServerControl,
    as_json_object,
    parse_version_numbers,
)
from agentrl.engine.vllm.install import VLLM
from agentrl.errors import EngineError

KEY = "AGENTRL_VLLM_KEY"
"""Environment variable, so that no key reaches a configuration, a log or a run directory."""
_SUPPORTED = parse_version_numbers(VLLM.version)[:2]
_PAUSES: Mapping[PauseMode, str] = {
    "retract": "mode=keep&clear_cache=true",
    "abort": "mode=abort&clear_cache=true",
    "in_place": "mode=keep&clear_cache=false",
}
NO_SHARING = (
    "engine.share_device: a vLLM server keeps its memory; choose --engine sglang or local, or give "
    "the trainer a device of its own"
)


class VllmControl(ServerControl):
    """Calls to one server; each raises EngineError with the server's reason."""

    title = VLLM.title
    key_hint = f"set {KEY} to its key"
    settings = "engine.vllm"
    temperature_hint = "start the server with --logprobs-mode processed_logprobs"

    async def info(self) -> Info:
        """What the server is.

        Raises EngineError for another version, or a server that is not ours.
        """
        said = as_json_object(await self.request_json("GET", "/version"))
        version = str(said.get("version"))
        if parse_version_numbers(version)[:2] != _SUPPORTED:
            raise EngineError(
                f"the server at {self.url} is vLLM {version}, expected "
                f"{'.'.join(map(str, _SUPPORTED))}; agentrl engine install vllm brings it"
            )
        try:
            found = as_json_object((await self.call_workers("agentrl_describe"))[0])
        except EngineError as error:
            raise EngineError(f"{error}; start the server by: agentrl engine serve vllm") from error
        weights = as_json_object(await self.request_json("GET", "/weight_info"))
        harmless = {"quantization": None, "logprobs_mode": "processed_logprobs"}
        numbers = cast("Mapping[str, int]", found)
        return Info(
            version=version,
            weight_version=str(weights.get("weight_version")),
            model_path=str(found.get("model")),
            dtype=str(found.get("dtype")),
            tp_size=numbers["tp_size"],
            dp_size=numbers["dp_size"],
            kv_tokens=numbers["kv_tokens"],
            longest_prompt=min(numbers["context_length"], numbers["kv_tokens"]),
            lags=False,
            quirks=tuple(
                f"{name}={found.get(name)}"
                for name, expected in harmless.items()
                if found.get(name) != expected
            ),
        )

    async def call_workers(
        self, method: str, *arguments: object, timeout_s: float | None = None
    ) -> Sequence[object]:
        """What a method of each worker gives."""
        body = {"method": method, "args": list(arguments)}
        said = await self.request_json("POST", "/collective_rpc", body, timeout_s=timeout_s)
        results = as_json_object(said).get("results")
        if not isinstance(results, list) or not results:
            raise EngineError(f"the workers of the vLLM server at {self.url} said nothing")
        return cast("list[object]", results)

    async def abort(self, rid: str) -> None:
        """End a running request; it answers with what it has."""
        body = {"request_ids": [f"generate-tokens-{rid}"]}  # its own name for the request
        await self.request_json("POST", "/inference/v1/abort_requests", body)

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling."""
        await self.request_json("POST", f"/pause?{_PAUSES[mode]}")

    async def resume(self) -> None:
        """Go on."""
        await self.request_json("POST", "/resume")

    async def release(self, tags: Sequence[str]) -> None:
        """Not possible here."""
        raise EngineError(NO_SHARING)

    async def take_back(self, tags: Sequence[str]) -> None:
        """Not possible here."""
        raise EngineError(NO_SHARING)

    async def flush(self, timeout_s: float = 30.0) -> None:
        """Forget all keys and values, for which nothing may run."""
        said = as_json_object(await self.request_json("POST", "/reset_prefix_cache"))
        if said.get("success") is not True:
            raise EngineError(f"the vLLM server at {self.url} did not forget its prefixes")

    async def set_version(self, version: int) -> None:
        """Name the weights that are loaded."""
        body = {"new_version": str(version)}
        await self.request_json("POST", "/update_weight_version", body)

    async def tokenize(self, text: str) -> Sequence[object]:
        """The server's ids of a text."""
        body = {"prompt": text, "add_special_tokens": False}
        said = as_json_object(await self.request_json("POST", "/tokenize", body))
        tokens = said.get("tokens")
        return cast("Sequence[object]", tokens) if isinstance(tokens, list) else ()

    async def describe_truncation(self, ids: Sequence[int]) -> str:
        """What is said of a token when sampling keeps the likeliest one only."""
        sampling = {"max_tokens": 1, "top_k": 1, "logprobs": 0}
        body = {"token_ids": ids, "sampling_params": sampling}
        said = as_json_object(await self.request_json("POST", "/inference/v1/generate", body))
        (choice,) = cast("Sequence[Mapping[str, Any]]", said.get("choices"))
        kind = "after" if choice["logprobs"]["content"][0]["logprob"] == 0.0 else "before"
        return f"logprobs are those {kind} it"
