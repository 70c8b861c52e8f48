"""A local engine with the state that the wire protocol adds: pauses, names of weights, requests.

A request is a session of its own that ends with it. What it computed stays until its room is
needed, so a later request that begins with the same ids finds its prefix cached.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch, transformers and safetensors are not typed)

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from agentrl.engine.local.demands import attending
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import known_ids
from agentrl.engine.local.stepper import Stepper
from agentrl.engine.local.weights import update_parameters
from agentrl.engine.protocol import check_request
from agentrl.engine.serve.unpickle import Named, read_tensors
from agentrl.engine.serve.wire import (
    DiskUpdate,
    GenerateRequest,
    Json,
    SamplingParams,
    TensorUpdate,
    Update,
    answer,
    answer_scores,
)
from agentrl.engine.servers.control import PauseMode
from agentrl.errors import EngineError
from agentrl.tokens import Tokenizer
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason
from agentrl.weights.experts import as_in_files

_GREEDY_BELOW = 1e-6
_LOOK_S = 0.02
_NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running; "
    "pause with retract, or send flush_cache false"
)


class Serving:
    """What the routes call; every EngineError is a sentence for the client."""

    def __init__(self, engine: LocalEngine, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.config = model.config
        self.mode: PauseMode | None = None
        self._names = ["0"]
        """Of the weights; the engine counts their versions."""
        self._updating = False
        self._live: set[str] = set()
        self._eos = _list_eos_ids(model)

    @property
    def weight_version(self) -> str:
        """The name of the weights that are loaded."""
        return self._names[-1]

    def admit(self, asked: GenerateRequest) -> tuple[list[int], Sampling, str]:
        """Ids, settings and name of a request that can be served.

        Raises EngineError for any other.
        """
        given = asked.sampling_params or SamplingParams()
        asked.check_others()
        given.check_others()
        if asked.input_ids is None and asked.text is None:
            raise EngineError("got neither input_ids nor text; send one of them")
        ids = asked.input_ids if asked.input_ids is not None else self.tokenize(asked.text or "")
        room = self.engine.context_length - len(ids)
        sampling = self._convert_sampling_params(given, room)
        check_request(
            ids,
            sampling,
            vocab_size=self.engine.vocab_size,
            context_length=self.engine.context_length,
        )
        if (asked.logprob_start_len or 0) >= len(ids):
            raise EngineError(
                f"got logprob_start_len {asked.logprob_start_len} for {len(ids)} tokens; send less"
            )
        if sampling.max_new_tokens > room:
            raise EngineError(
                f"got {len(ids)} tokens and max_new_tokens {sampling.max_new_tokens}, but the "
                f"context holds {self.engine.context_length}; ask for at most {room}"
            )
        rid = asked.rid or uuid4().hex
        if rid in self._live:
            raise EngineError(f"Duplicate request ID detected: {rid}")
        return ids, sampling, rid

    def _convert_sampling_params(self, given: SamplingParams, room: int) -> Sampling:
        temperature = 1.0 if given.temperature is None else given.temperature
        if 0 <= temperature < _GREEDY_BELOW or given.top_k == 1:
            temperature = 0.0
        most, seed = given.max_new_tokens, given.sampling_seed
        stops = () if given.ignore_eos else (*(given.stop_token_ids or ()), *self._eos)
        return Sampling(
            max_new_tokens=max(1, room if most is None else most),
            temperature=temperature,
            stop_ids=frozenset(stops),
            seed=secrets.randbits(63) if seed is None else seed,
        )

    async def generate(
        self, asked: GenerateRequest, ids: list[int], sampling: Sampling, rid: str
    ) -> Json:
        """The answer to an admitted request; abandoned, it ends. A prompt is scored at once."""
        begun = time.monotonic()
        given = asked.sampling_params or SamplingParams()
        if given.max_new_tokens == 0:
            scores = await self.engine.between_steps(lambda stepper: _score_ids(stepper.model, ids))
            start = asked.logprob_start_len or 0
            return answer_scores(rid, ids, scores[start:], self.weight_version, begun=begun)
        session = EpisodeSession(rid)
        self._live.add(rid)
        try:
            completion = await self.engine.generate(
                ids, sampling, session, cache_key=asked.extra_key
            )
        finally:
            self._live.discard(rid)
            self.engine.leave(session)
        said = answer(
            rid,
            len(ids),
            completion,
            self._names,
            text=self._decode_completion(completion, given),
            limit=sampling.max_new_tokens,
            logprobs=bool(asked.return_logprob),
            begun=begun,
        )
        if asked.return_prompt_token_ids:
            said["prompt_token_ids"] = ids
        return said

    def _decode_completion(self, completion: Completion, given: SamplingParams) -> str:
        ids = completion.ids_T.tolist()
        if completion.stop_reason is StopReason.STOP and not given.no_stop_trim:
            del ids[-1]
        return self.tokenizer.decode(ids, skip_special=given.skip_special_tokens is not False)

    def tokenize(self, text: str, *, bos: bool = True) -> list[int]:
        """Ids of a text in which control tokens are recognised."""
        ids = self.tokenizer.encode(text, specials=True)
        first = self.tokenizer.bos_token
        return [first.id, *ids] if bos and self.tokenizer.adds_bos and first else ids

    async def abort(self, rid: str | None, *, everything: bool = False) -> None:
        """End one request, or all; they return with what they have."""
        if everything:
            await self.engine.between_steps(Stepper.abort_all)
        elif rid:
            await self.engine.abort(EpisodeSession(rid))

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling: running requests end, stay as they are, or compute their prefix again."""
        await self.engine.pause()
        if mode == "abort":
            await self.engine.between_steps(Stepper.abort_all)
        elif mode == "retract":
            await self.engine.between_steps(Stepper.invalidate)
        self.mode = mode

    async def resume(self) -> None:
        """Go on."""
        self.mode = None
        await self.engine.resume()

    async def flush(self, timeout_s: float) -> None:
        """Forget all keys and values once nothing runs.

        Raises EngineError if something still does after `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while not await self.engine.between_steps(self._flush_prefix_cache_if_idle):
            if time.monotonic() >= end:
                raise EngineError("Flush cache failed: requests are running or waiting.")
            await asyncio.sleep(_LOOK_S)

    def _flush_prefix_cache_if_idle(self, stepper: Stepper) -> bool:
        queued = stepper.waiting if self.mode is None else ()
        if self.mode != "retract" and (stepper.running or queued):
            return False
        stepper.invalidate()
        return True

    async def begin_update(self) -> None:
        """Open a weight update."""
        if self._updating:
            raise EngineError("a weight update is already open; end it with /end_weight_update")
        self._updating = True

    async def end_update(self) -> None:
        """Close a weight update."""
        if not self._updating:
            raise EngineError("no weight update is open; begin one with /begin_weight_update")
        self._updating = False

    async def update_from_tensor(self, asked: TensorUpdate) -> None:
        """Write the tensors of a request."""
        if not self._updating:
            raise EngineError(
                "update_weights_from_tensor must run between begin_weight_update() and "
                "end_weight_update()"
            )
        payloads = asked.serialized_named_tensors
        if len(payloads) != 1:
            raise EngineError(f"got {len(payloads)} payloads, expected 1, as tp_size is 1")
        named = await asyncio.to_thread(read_tensors, payloads[0], asked.load_format)
        await self._write_tensors_between_steps(named, asked)

    async def update_from_disk(self, asked: DiskUpdate) -> None:
        """Write all weights of a folder."""
        named = await asyncio.to_thread(_read_weights_folder, Path(asked.model_path))
        await self._write_tensors_between_steps(named, asked, whole=True)

    async def _write_tensors_between_steps(
        self, named: Named, asked: Update, *, whole: bool = False
    ) -> None:
        """Write tensors between two steps: all, or none if one does not fit."""

        def now(stepper: Stepper) -> bool:
            ours = dict(as_in_files(stepper.model.named_parameters()))
            lacking = ours.keys() - dict(as_in_files(named)).keys()
            if whole and lacking:
                raise EngineError(f"the folder lacks {len(lacking)} tensors, first {min(lacking)}")
            if asked.abort_all_requests:
                stepper.abort_all()
            update_parameters(stepper.model, named, partial=True)
            if asked.weight_version is not None:
                self._name_weights_version(stepper, asked.weight_version)
            if self.mode is None and asked.flush_cache:
                stepper.invalidate()  # what runs computes its prefix again
                return True
            return not asked.flush_cache or self._flush_prefix_cache_if_idle(stepper)

        if not await self.engine.between_steps(now):
            raise EngineError(_NOT_FLUSHED)

    async def name_weights(self, name: str, *, abort: bool) -> None:
        """Give the loaded weights a name."""

        def now(stepper: Stepper) -> None:
            if abort:
                stepper.abort_all()
            self._name_weights_version(stepper, name)

        await self.engine.between_steps(now)

    def _name_weights_version(self, stepper: Stepper, name: str) -> None:
        self._names.append(name)
        stepper.version = len(self._names) - 1

    async def first_rows(self, name: str, rows: int) -> object:
        """The first rows of a weight, nested as its shape is."""

        def now(stepper: Stepper) -> object:
            found = dict(stepper.model.named_parameters(remove_duplicate=False)).get(name)
            if found is None:
                raise EngineError(f"the model has no weight {name!r}; give its Hugging Face name")
            return found.detach()[:rows].float().tolist()

        return await self.engine.between_steps(now)


def _score_ids(model: PreTrainedModel, ids: list[int]) -> list[float]:
    """The logprob of each id but the first at temperature 1, by the model's own code."""
    with torch.inference_mode(), attending(model, "eager"):
        ids_1T = torch.tensor([ids], device=model.device)
        logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0, :-1, : known_ids(model)]
        logprobs_TV = torch.log_softmax(logits_TV.float(), dim=-1)
        scores: list[float] = logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].tolist()
    return scores


def _list_eos_ids(model: PreTrainedModel) -> Sequence[int]:
    """The ids that end a completion by the model's own settings."""
    given: int | list[int] | None = getattr(model.generation_config, "eos_token_id", None)
    return [] if given is None else [given] if isinstance(given, int) else given


def _read_weights_folder(folder: Path) -> Named:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no *.safetensors; give a folder that this server sees")
    try:
        return [pair for file in files for pair in load_file(file).items()]
    except (OSError, SafetensorError) as error:
        raise EngineError(f"the weights in {folder} cannot be read: {error}") from error
