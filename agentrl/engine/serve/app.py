"""The server: routes, keys, start and stop."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import orjson
from aiohttp import web
from pydantic import ValidationError

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.serve import wire
from agentrl.engine.serve.listening import has_headers, served_until_stopped, stop_at_signals
from agentrl.engine.serve.serving import Serving
from agentrl.engine.servers.control import Keys
from agentrl.engine.sglang.install import SGLANG
from agentrl.errors import EngineError
from agentrl.tokens import Tokenizer

_OPEN = ("/health", "/health_generate")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class App:
    """The routes over one engine; clients must bring the keys."""

    def __init__(self, serving: Serving, folder: Path, keys: Keys) -> None:
        self._serving = serving
        self._folder = folder
        self._keys = keys
        self._free: Mapping[str, Handler] = {
            "/generate": self._answer_generate,
            "/tokenize": self._answer_tokenize,
            "/server_info": self._answer_server_info,
            "/model_info": self._answer_model_info,
            "/v1/loads": self._answer_loads,
            "/health": self._answer_health,
            "/health_generate": self._answer_health,
        }
        self._for_admins: Mapping[str, Handler] = {
            "/abort_request": self._answer_abort,
            "/pause_generation": self._answer_pause,
            "/continue_generation": self._answer_continue,
            "/flush_cache": self._answer_flush_cache,
            "/begin_weight_update": self._answer_begin_update,
            "/end_weight_update": self._answer_end_update,
            "/update_weights_from_tensor": self._answer_update_from_tensor,
            "/update_weights_from_disk": self._answer_update_from_disk,
            "/update_weight_version": self._answer_update_version,
            "/get_weights_by_name": self._answer_weights_by_name,
        }

    def make(self) -> web.Application:
        """The aiohttp application."""
        # 0: weights come in bodies of any size.
        app = web.Application(client_max_size=0, middlewares=[self._check_key_and_answer_errors])
        for path, handler in {**self._free, **self._for_admins}.items():
            app.router.add_route("*", path, handler)
        return app

    @web.middleware
    async def _check_key_and_answer_errors(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Check the key, and turn what a handler raises into an answer."""
        wanted = self._keys.headers(admin=request.path in self._for_admins)
        if not has_headers(request, wanted) and request.path not in _OPEN:
            return _make_json_response({"error": "Unauthorized"}, 401)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _make_json_response({"detail": error.reason}, error.status)
        except ValidationError as error:
            return _make_refusal_response(_describe_first_mistake(error))
        except EngineError as error:
            return _make_refusal_response(str(error))

    async def _answer_generate(self, request: web.Request) -> web.Response:
        asked = wire.GenerateRequest.model_validate_json(await request.read())
        admitted = self._serving.admit(asked)
        try:
            return _make_json_response(await self._serving.generate(asked, *admitted))
        except EngineError as error:
            return _make_json_response({"error": {"message": str(error)}}, 500)

    async def _answer_tokenize(self, request: web.Request) -> web.Response:
        asked = wire.Text.model_validate_json(await request.read())
        ids = self._serving.tokenize(asked.prompt, bos=asked.add_special_tokens)
        longest = self._serving.engine.context_length
        return _make_json_response({"tokens": ids, "count": len(ids), "max_model_len": longest})

    async def _answer_server_info(self, request: web.Request) -> web.Response:
        engine = self._serving.engine
        return _make_json_response(
            {
                # The protocol's: what clients go by.
                "version": SGLANG.version,
                "frontend": "agentrl",
                **self._describe_served_model(),
                "dtype": str(engine.dtype).removeprefix("torch."),
                "tp_size": 1,
                "dp_size": 1,
                "context_length": engine.context_length,
                "max_req_input_len": engine.context_length - 1,
                "max_total_num_tokens": engine.slots * engine.context_length,
                "quantization": None,
                "disable_overlap_schedule": True,
                "internal_states": [],
            }
        )

    async def _answer_model_info(self, request: web.Request) -> web.Response:
        return _make_json_response(self._describe_served_model())

    def _describe_served_model(self) -> wire.Json:
        config = self._serving.config
        path = str(self._folder)
        return {
            "model_path": path,
            "tokenizer_path": path,
            "served_model_name": path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self._serving.weight_version,
            "model_type": config.model_type,
            "architectures": config.architectures,
        }

    async def _answer_loads(self, request: web.Request) -> web.Response:
        health = await self._serving.engine.health()
        load = {
            "dp_rank": 0,
            "num_running_reqs": health.running,
            "num_waiting_reqs": health.waiting,
        }
        return _make_json_response({"loads": [load]})

    async def _answer_health(self, request: web.Request) -> web.Response:
        alive = (await self._serving.engine.health()).alive
        return web.Response(status=200 if alive else 503)

    async def _answer_abort(self, request: web.Request) -> web.Response:
        asked = wire.Abort.model_validate_json(await request.read())
        await self._serving.abort(asked.rid, everything=asked.abort_all)
        return web.Response()

    async def _answer_pause(self, request: web.Request) -> web.Response:
        asked = wire.Pause.model_validate_json(await request.read())
        await self._serving.pause(asked.mode)
        return _make_json_response({"message": "Generation paused.", "status": "ok"})

    async def _answer_continue(self, request: web.Request) -> web.Response:
        await self._serving.resume()
        return _make_json_response({"message": "Generation continued.", "status": "ok"})

    async def _answer_flush_cache(self, request: web.Request) -> web.Response:
        try:
            timeout_s = float(request.query.get("timeout", "0"))
        except ValueError as error:
            raise EngineError(f"timeout: {error}") from error
        await self._serving.flush(timeout_s)
        return web.Response(text="Cache flushed.\n")

    async def _answer_begin_update(self, request: web.Request) -> web.Response:
        return await _respond_by_success(self._serving.begin_update())

    async def _answer_end_update(self, request: web.Request) -> web.Response:
        return await _respond_by_success(self._serving.end_update())

    async def _answer_update_from_tensor(self, request: web.Request) -> web.Response:
        asked = wire.TensorUpdate.model_validate_json(await request.read())
        return await _respond_by_success(self._serving.update_from_tensor(asked))

    async def _answer_update_from_disk(self, request: web.Request) -> web.Response:
        asked = wire.DiskUpdate.model_validate_json(await request.read())
        return await _respond_by_success(self._serving.update_from_disk(asked))

    async def _answer_update_version(self, request: web.Request) -> web.Response:
        asked = wire.VersionUpdate.model_validate_json(await request.read())
        abort = asked.abort_all_requests
        return await _respond_by_success(self._serving.name_weights(asked.new_version, abort=abort))

    async def _answer_weights_by_name(self, request: web.Request) -> web.Response:
        asked = wire.Weight.model_validate_json(await request.read())
        return _make_json_response(await self._serving.first_rows(asked.name, asked.truncate_size))


def _make_json_response(content: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


def _make_refusal_response(message: str) -> web.Response:
    return _make_json_response({"error": {"message": message}}, 400)


async def _respond_by_success(work: Awaitable[None]) -> web.Response:
    """Say by `success` whether some work was done."""
    try:
        await work
    except EngineError as error:
        return _make_json_response({"success": False, "message": str(error)}, 400)
    return _make_json_response({"success": True, "message": "Success"})


def _describe_first_mistake(error: ValidationError) -> str:
    """The first mistake in a body, as a sentence."""
    mistake = error.errors(include_url=False)[0]
    where = ".".join(map(str, mistake["loc"])) or "the body"
    return f"{where}: {mistake['msg']}"


async def serve(
    folder: Path,
    config: EngineConfig,
    listening: socket.socket,
    ready: Callable[[], None],
    keys: Keys,
) -> None:
    """Serve a model until SIGTERM or SIGINT; running requests then end with what they have."""
    stop = stop_at_signals()
    model = await asyncio.to_thread(load_model, folder, config.dtype)
    # Clients have deadlines of their own; a server that is paused for long must not have one.
    engine = LocalEngine(model, config.model_copy(update={"timeout_s": float("inf")}))
    serving = Serving(engine, model, Tokenizer.load(folder))
    try:
        async with served_until_stopped(App(serving, folder, keys).make(), listening, stop, ready):
            await serving.abort(None, everything=True)
    finally:
        await engine.aclose()
