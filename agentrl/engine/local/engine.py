"""`LocalEngine`: an engine inside the process, over transformers models with causal attention.

    event loop                              step thread
    generate(...) ── request ──> inbox ──> [ stepper: admit, forward, draw, book ] <─ loops
        awaits a future <── all that ended in one step, one wake-up per event loop ──┘

The thread owns all state; calls reach it as functions in its inbox, run between two steps.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.aio import PauseWatch, timeout_beside_pauses
from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import ExpertChannels, expert_channels
from agentrl.engine.local.attention import ATTENTION
from agentrl.engine.local.check import check_engine
from agentrl.engine.local.demands import context_length, measure_heads, set_attention
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.stepper import SlotRequest, Stepper
from agentrl.engine.local.weights import Slices, inference_model, update_parameters
from agentrl.engine.protocol import (
    MEMORY_TAGS,
    Health,
    MemoryStages,
    MemoryTag,
    check_request,
    check_version,
)
from agentrl.errors import ConfigError, EngineError
from agentrl.tokens.hash_chain import seal
from agentrl.types import Completion, EpisodeSession, Sampling
from agentrl.weights.source import SlicedSource, WeightSource

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SEED_MASK = (1 << 64) - 1
_Waiter = asyncio.Future[None]
_T = TypeVar("_T")


class LocalEngine:
    """Samples with its own copy of a model's weights or, where the dtypes agree, with the model's.

    With shared weights, `pause` before the optimizer writes to them and `update_weights` after.
    """

    honours_seeds = True

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig | None = None, *, version: int = 0
    ) -> None:
        """Build over `model`, which stays as it is.

        Raises:
            ConfigError: the engine would not compute what the model's own code does.
        """
        config = config or EngineConfig()
        self.dtype = _choose_inference_dtype(config, model)
        self.shares_weights = _shares_trainer_weights(config, model.dtype, self.dtype)
        embeddings = model.get_input_embeddings().weight
        assert isinstance(embeddings, Tensor)
        self.vocab_size = embeddings.shape[0]
        self.context_length = context_length(model, config.context_length)
        self.slots = config.slots
        self._timeout_s = config.timeout_s
        ours = inference_model(model, self.dtype, share=self.shares_weights)
        heads = measure_heads(ours, self.context_length)
        set_attention(ours, ATTENTION)
        check_engine(ours, heads, self.context_length)
        self._stepper = Stepper(
            ours, heads, slots=config.slots, prefill_tokens=config.prefill_tokens
        )
        self._stepper.version = version
        self._memory = MemoryStages()
        self._slices = Slices(self._stepper.model, self.dtype)
        self._inbox = SimpleQueue[Callable[[], None]]()
        self._outbox: list[tuple[_Waiter, BaseException | None]] = []
        self._calls: set[_Waiter] = set()
        self._paused = False
        self._pauses = PauseWatch()
        self._dead: EngineError | None = None
        self._thread = threading.Thread(
            target=self._run_engine_thread,
            args=(config.threads,),
            name="agentrl-engine",
            daemon=True,
        )
        self._thread.start()

    @classmethod
    def load(cls, folder: Path, config: EngineConfig | None = None, *, device: str = "cpu") -> Self:
        """An engine over a model folder, for sampling without a trainer."""
        config = config or EngineConfig()
        model = load_model(folder, config.dtype, device=device)
        return cls(model, config.model_copy(update={"share_weights": "auto"}))

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: EpisodeSession,
        *,
        cache_key: str | None = None,
    ) -> Completion:
        """Sample one completion of `ids`; sessions share prefixes under one `cache_key`.

        It has `engine.timeout_s`, which stands still while the engine is paused.
        """
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        request = self._make_slot_request(ids, sampling, session, waiter, cache_key)
        self._post_to_engine_thread(lambda: self._stepper.submit(request))
        try:
            async with timeout_beside_pauses(self._timeout_s, lambda: self.paused_s):
                await waiter
        except TimeoutError as e:
            self._inbox.put(lambda: self._stepper.cancel(request))
            raise EngineError(
                f"session {session.key!r} got no completion within {self._timeout_s:g} s; "
                "raise engine.timeout_s or lower the number of episodes at once"
            ) from e
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._stepper.cancel(request))
            raise
        return _make_completion_of_request(request)

    @property
    def paused_s(self) -> float:
        """Seconds that it was paused in all, now included."""
        return self._pauses.total_s

    async def end_session(self, session: EpisodeSession) -> None:
        """Forget what is kept for the session."""
        if self._dead is None:
            self._post_to_engine_thread(lambda: self._stepper.end_session(session.key))

    def leave(self, session: EpisodeSession) -> None:
        """End a session, but let others begin with what is kept of it while there is room."""
        if self._dead is None:
            self._post_to_engine_thread(lambda: self._stepper.leave(session.key))

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Take new weights between two steps; all keys and values of the old ones are forgotten.

        Slices of other processes are written while requests run on under the old weights.
        """
        self._memory.check_loadable()
        if isinstance(weights, SlicedSource) and not isinstance(weights, Iterable):
            check_version(version, self._stepper.version)
            await self._slices.receive(weights, self._timeout_s)
            await self.between_steps(lambda _: self._change_weights(self._slices.change, version))
            return
        # Here, not on the engine's thread: what the source raises is its caller's. One that can be
        # gone through again makes its tensors one by one, so all of them are never there.
        tensors: Iterable[tuple[str, Tensor]] = (
            cast("Iterable[tuple[str, Tensor]]", weights)
            if isinstance(weights, Iterable)
            else list(weights.named_tensors())
        )
        model = self._stepper.model
        await self.between_steps(
            lambda _: self._change_weights(lambda: update_parameters(model, tensors), version)
        )

    async def pause(self) -> None:
        """Stop sampling: when this returns, no step runs and the weights may be written to."""
        await self.between_steps(lambda _: self._set_paused(True))

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._memory.serve()
        await self.between_steps(lambda _: self._set_paused(False))

    async def release_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Free the cache, and weights that are the engine's own; what runs computes its keys again.

        Raises EngineError if the engine is not paused, or has not what is to be released.
        """
        await self.between_steps(lambda stepper: self._release_tagged_memory(stepper, tags))

    async def resume_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Make room for weights, which have no values yet; the cache grows as it is needed."""
        await self.between_steps(lambda stepper: self._resume_tagged_memory(stepper, tags))

    async def abort(self, session: EpisodeSession) -> None:
        """End the session's running request; it returns with what it has."""
        await self.between_steps(lambda stepper: stepper.abort(session.key))

    async def between_steps(self, function: Callable[[Stepper], _T]) -> _T:
        """What a function gives that runs on the step thread, between two steps.

        It may raise EngineError, and nothing else.
        """
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        given: list[_T] = []

        def run() -> None:
            error = None
            try:
                given.append(function(self._stepper))
            except EngineError as e:
                error = e
            self._calls.discard(waiter)
            self._outbox.append((waiter, error))

        self._calls.add(waiter)
        self._post_to_engine_thread(run)
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter
        except TimeoutError as e:
            raise EngineError(f"the engine did not answer within {self._timeout_s:g} s") from e
        return given[0]

    async def health(self) -> Health:
        """State and counters."""
        stepper = self._stepper
        return Health(
            alive=self._dead is None and self._thread.is_alive(),
            version=stepper.version,
            running=len(stepper.running),
            waiting=len(stepper.waiting),
            prefill_tokens=stepper.prefill_tokens,
            cached_tokens=stepper.cached_tokens,
            sampled_tokens=stepper.sampled_tokens,
        )

    async def aclose(self) -> None:
        """Stop; running requests raise EngineError."""
        self._inbox.put(lambda: self._fail_all_requests(EngineError("the engine was closed")))
        await asyncio.to_thread(self._thread.join)

    def _make_slot_request(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: EpisodeSession,
        waiter: _Waiter,
        cache_key: str | None,
    ) -> SlotRequest:
        ids_T = np.asarray(ids, dtype=np.int64)
        check_request(
            ids_T, sampling, vocab_size=self.vocab_size, context_length=self.context_length
        )
        return SlotRequest(
            ids_T=ids_T,
            sampling=sampling,
            session=session.key,
            seed=sampling.seed & _SEED_MASK,
            limit=min(len(ids_T) + sampling.max_new_tokens, self.context_length),
            done=lambda request: self._outbox.append((waiter, request.error)),
            cache_key=cache_key,
        )

    def _change_weights(self, change: Callable[[], None], version: int) -> None:
        check_version(version, self._stepper.version)
        change()
        self._memory.loaded()
        self._stepper.invalidate()
        self._stepper.version = version

    def _release_tagged_memory(self, stepper: Stepper, tags: Sequence[MemoryTag]) -> None:
        if not self._paused:
            raise EngineError("memory of an engine that samples cannot be released; pause it first")
        self._memory.release(tags)
        if "kv_cache" in tags:
            stepper.free_cache()
        if "weights" in tags and not self.shares_weights:
            self._slices.release()

    def _resume_tagged_memory(self, stepper: Stepper, tags: Sequence[MemoryTag]) -> None:
        self._memory.resume(tags)
        if "kv_cache" in tags:
            stepper.allocate_cache()
        if "weights" in tags and not self.shares_weights:
            self._slices.allocate()

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        if paused:
            self._pauses.pause()
        else:
            self._pauses.resume()

    def _post_to_engine_thread(self, function: Callable[[], None]) -> None:
        if self._dead is not None:
            raise EngineError(str(self._dead)) from self._dead
        self._inbox.put(function)

    def _run_engine_thread(self, threads: int) -> None:
        if threads:
            torch.set_num_threads(threads)
        try:
            while self._dead is None:
                self._run_inbox_and_decode_pass()
        # A thread's border: whatever ended it is the failure of every request it served.
        except Exception as e:
            self._fail_all_requests(
                EngineError(f"the engine's thread died: {type(e).__name__}: {e}"), e
            )
            self._wake_settled_futures()

    def _run_inbox_and_decode_pass(self) -> None:
        idle = self._paused or not (self._stepper.running or self._stepper.waiting)
        if idle:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()
        if self._dead is None and not self._paused:
            self._stepper.step()
        self._wake_settled_futures()

    def _fail_all_requests(self, error: EngineError, cause: Exception | None = None) -> None:
        error.__cause__ = cause
        self._dead = error
        self._stepper.fail(error)
        while not self._inbox.empty():
            self._inbox.get()()
        self._stepper.fail(error)
        self._outbox += [(waiter, error) for waiter in self._calls]
        self._calls.clear()

    def _wake_settled_futures(self) -> None:
        """Wake each event loop once for all its futures that are settled."""
        if not self._outbox:
            return
        settled, self._outbox = self._outbox, []
        loops = {waiter.get_loop() for waiter, _ in settled}
        for loop in loops:
            mine = [pair for pair in settled if pair[0].get_loop() is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle_futures, mine)


def _settle_futures(settled: list[tuple[_Waiter, BaseException | None]]) -> None:
    for waiter, error in settled:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _choose_inference_dtype(config: EngineConfig, model: PreTrainedModel) -> torch.dtype:
    """The model's own where it runs well: a CPU without bfloat16 products takes float32."""
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return model.dtype
    found = [has for name, has in torch.cpu.get_capabilities().items() if "bf16" in name]
    return torch.float32 if found and not any(found) else model.dtype


def _shares_trainer_weights(config: EngineConfig, theirs: torch.dtype, ours: torch.dtype) -> bool:
    if config.share_weights == "auto":
        return theirs == ours
    if config.share_weights and theirs != ours:
        raise ConfigError(
            f"engine.share_weights is on, but the model is {theirs} and the engine {ours}; set "
            "engine.dtype to auto or let the engine keep a copy"
        )
    return config.share_weights


def _make_completion_of_request(request: SlotRequest) -> Completion:
    assert request.stop_reason is not None
    experts = ExpertChannels()
    if request.experts is not None:
        experts = expert_channels(request.experts, len(request.ids_T))
    return seal(
        np.array(request.sampled, dtype=np.int32),
        np.array(request.logprobs, dtype=np.float32),
        np.array(request.versions, dtype=np.int32),
        request.stop_reason,
        cached_tokens=request.cached_tokens,
        **experts,
    )
