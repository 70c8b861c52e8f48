"""Continuous batching: one step is one forward pass and one drawn token for each ready request.

Everything here runs on the engine's thread; nothing here waits. Requests join and leave between
steps. A step takes one token of every request that is decoding and up to `prefill_tokens` of the
prompts of others, flat in one pass.

Suffixes: N new tokens of a step, R rows, S sequences for which a token is drawn.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from agentrl.engine.local.attention import FlatPass, lay_out
from agentrl.engine.local.demands import Heads
from agentrl.engine.local.models.load import known_ids
from agentrl.engine.local.routing_replay import mixtures, routed
from agentrl.engine.local.rows import RowCache, Rows, draw_ids, draw_uniforms
from agentrl.errors import EngineError
from agentrl.types import Sampling, StopReason


@dataclass(slots=True, eq=False)
class SlotRequest:
    """One completion on its way; `stop_reason` or `error` is set when it ends."""

    ids_T: NDArray[np.int64]
    sampling: Sampling
    session: str
    seed: int
    """64 bits."""
    limit: int
    """Length of prompt and completion at which it is cut."""
    done: Callable[["SlotRequest"], None]
    cache_key: str | None = None
    """Prefixes are shared among sessions of one key."""
    row: int = -1
    cached_tokens: int = 0
    forget: bool = False
    """The session ended while this ran."""
    sampled: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    experts: NDArray[np.int16] | None = None
    """The experts of all tokens but the last, [T - 1, layers, chosen]; before the end, of those
    that were computed before an update: what is sampled is told with the experts of then."""
    stop_reason: StopReason | None = None
    error: EngineError | None = None


@dataclass(frozen=True, slots=True)
class _Work:
    """One forward pass, and the rows that draw a token from its output."""

    flat: FlatPass
    ids_N: NDArray[np.int64]
    last_S: NDArray[np.int64]
    """Where in the flat list the drawing rows' last tokens are."""
    rows_S: NDArray[np.int64]
    decoding: NDArray[np.int64]
    """The rows that computed one token."""


class Stepper:
    """The running batch and the queue before it."""

    def __init__(
        self, model: PreTrainedModel, heads: Heads, *, slots: int, prefill_tokens: int
    ) -> None:
        self.version = 0
        self.prefill_tokens = 0
        self.cached_tokens = 0
        self.sampled_tokens = 0
        self.running: dict[int, SlotRequest] = {}
        """By row."""
        self.waiting: deque[SlotRequest] = deque()
        self.model = model
        self._device = model.device
        self._cache = RowCache(heads, model.dtype, self._device)
        self._routes = bool(mixtures(model))
        self._rows = Rows(self._cache, slots)
        self._budget = prefill_tokens

    def submit(self, request: SlotRequest) -> None:
        """Queue a request."""
        if any(other.session == request.session for other in self._list_all_requests()):
            request.error = EngineError(
                f"session {request.session!r} already has a running request; await it first"
            )
            request.done(request)
        else:
            self.waiting.append(request)

    def abort(self, session: str) -> None:
        """End the session's request with what it has."""
        for request in self._list_all_requests():
            if request.session == session:
                self._end_request(request, StopReason.ABORT)

    def cancel(self, request: SlotRequest) -> None:
        """End a request that nobody waits for any more."""
        self._end_request(request, StopReason.ABORT)

    def end_session(self, session: str) -> None:
        """Forget what is kept for a session, at once or when its request has ended."""
        for request in self.running.values():
            request.forget |= request.session == session
        self._rows.drop(session)

    def leave(self, session: str) -> None:
        """End an idle session; others may begin with what it computed until its room is needed."""
        self._rows.leave(session)

    def abort_all(self) -> None:
        """End every request with what it has."""
        for request in self._list_all_requests():
            self._end_request(request, StopReason.ABORT)

    def invalidate(self) -> None:
        """Forget all keys and values, since the weights changed."""
        self._keep_experts_of_sampled()
        self._rows.invalidate()

    def free_cache(self) -> None:
        """Give back the memory of all keys and values; running requests compute theirs again."""
        self._keep_experts_of_sampled()
        self._rows.invalidate()
        self._cache.free()

    def allocate_cache(self) -> None:
        """Take it again."""
        self._cache.allocate()

    def fail(self, error: EngineError) -> None:
        """End everything with an error."""
        for request in self._list_all_requests():
            request.error = error
            self._end_request(request, None)

    @torch.inference_mode()
    def step(self) -> None:
        """Admit, compute, draw, book."""
        self._rows.steps += 1
        self._admit_waiting_requests()
        if not self.running:
            return
        for pair in self._rows.compact():
            self._exchange_cache_rows(*pair)
        work = self._plan_next_pass()
        logits_SV = self._compute_last_logits(work)
        self._rows.filled_R[work.decoding] += 1
        for piece in work.flat.plan.pieces:
            self._rows.filled_R[piece.row] = piece.length
        if len(work.rows_S):
            self._sample_and_record_tokens(logits_SV, work.rows_S)

    def _plan_next_pass(self) -> _Work:
        """Which tokens the next forward pass computes."""
        rows = self._rows
        missing_R = np.where(rows.busy_R, rows.known_R - rows.filled_R, 0)
        decoding = np.flatnonzero(missing_R == 1)
        spans = list(self._fit_prompts_to_budget(missing_R))
        flat = lay_out(self._cache, rows.filled_R, decoding, spans)
        drawing = [
            piece.stop - 1 for piece in flat.plan.pieces if piece.length == rows.known_R[piece.row]
        ]
        last_S = np.array([*decoding, *drawing], dtype=np.int64)
        ids_N = rows.tokens_RP[flat.owners_N, flat.positions_N]
        return _Work(flat, ids_N, last_S, flat.owners_N[last_S], decoding)

    def _fit_prompts_to_budget(self, missing_R: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Rows with more than one token to compute and how many of them fit into this step."""
        left = self._budget
        for row in self.running:
            missing = int(missing_R[row])
            if missing > 1 and left > 0:
                num = min(missing, left)
                left -= num
                yield row, num

    def _compute_last_logits(self, work: _Work) -> torch.Tensor:
        flat = work.flat
        with routed(self.model) if self._routes else nullcontext() as noted:
            output = self.model(
                input_ids=self._to_device_tensor(work.ids_N)[None],
                position_ids=self._to_device_tensor(flat.positions_N)[None],
                use_cache=False,
                logits_to_keep=self._to_device_tensor(work.last_S),
                plan=flat.plan,
            )
        if noted:
            kept_N = flat.writes_N < self._cache.length
            experts_N = torch.stack(noted, 1).cpu().numpy()[kept_N]
            self._rows.note(flat.owners_N[kept_N], flat.writes_N[kept_N], experts_N)
        logits_SV: torch.Tensor = output.logits[0, :, : known_ids(self.model)]
        return logits_SV

    def _sample_and_record_tokens(self, logits_SV: torch.Tensor, rows_S: NDArray[np.int64]) -> None:
        requests = [self.running[row] for row in rows_S.tolist()]
        ids_S, logprobs_S = draw_ids(
            logits_SV,
            np.array([request.sampling.temperature for request in requests], dtype=np.float32),
            draw_uniforms(
                np.array([request.seed for request in requests], dtype=np.uint64),
                self._rows.known_R[rows_S],
            ),
        )
        self._rows.tokens_RP[rows_S, self._rows.known_R[rows_S]] = ids_S
        self._rows.known_R[rows_S] += 1
        self.sampled_tokens += len(requests)
        for request, token, logprob in zip(
            requests, ids_S.tolist(), logprobs_S.tolist(), strict=True
        ):
            self._record_sampled_token(request, token, logprob)

    def _record_sampled_token(self, request: SlotRequest, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            # The model gave numbers that are not finite: nothing of this sequence may be kept.
            request.error = EngineError(
                f"the model's output for session {request.session!r} is not finite under version "
                f"{self.version}; look for overflow in its weights"
            )
            self._cache.clear(request.row)
            request.forget = True
            self._end_request(request, None)
            return
        request.sampled.append(token)
        request.logprobs.append(logprob)
        request.versions.append(self.version)
        if token in request.sampling.stop_ids:
            self._end_request(request, StopReason.STOP)
        elif len(request.sampled) == request.limit - len(request.ids_T):
            self._end_request(request, StopReason.LENGTH)

    def _end_request(self, request: SlotRequest, stop_reason: StopReason | None) -> None:
        request.stop_reason = stop_reason
        if request.row in self.running and self.running[request.row] is request:
            del self.running[request.row]
            if self._routes and request.sampled:
                num = len(request.ids_T) + len(request.sampled) - 1
                request.experts = self._join_kept_experts(request, num)
            self._rows.release(request.row)
            if request.forget:
                self._rows.drop(request.session)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        request.done(request)

    def _keep_experts_of_sampled(self) -> None:
        """Keep the experts of what running requests have sampled, before they compute it again."""
        for row, request in self.running.items():
            num = int(self._rows.filled_R[row])
            if self._routes and request.sampled and num == self._rows.known_R[row] - 1:
                request.experts = self._join_kept_experts(request, num)

    def _join_kept_experts(self, request: SlotRequest, num: int) -> NDArray[np.int16]:
        """The experts of its first `num` tokens, each by the weights that computed it first."""
        experts = self._rows.experts_RP[request.row, :num].copy()
        if request.experts is not None:
            experts[: len(request.experts)] = request.experts
        return experts

    def _list_all_requests(self) -> list[SlotRequest]:
        return [*self.running.values(), *self.waiting]

    def _to_device_tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _exchange_cache_rows(self, a: int, b: int) -> None:
        first, second = self.running.pop(a, None), self.running.pop(b, None)
        for row, request in ((b, first), (a, second)):
            if request is not None:
                request.row = row
                self.running[row] = request

    def _admit_waiting_requests(self) -> None:
        """Start every waiting request that finds a row, in their order."""
        if not self.waiting:
            return
        still: deque[SlotRequest] = deque()
        for request in self.waiting:
            found = self._rows.find(
                request.session, request.ids_T, request.limit, request.cache_key
            )
            if found is None:
                still.append(request)
                continue
            request.row, request.cached_tokens = found
            self.cached_tokens += request.cached_tokens
            self.prefill_tokens += len(request.ids_T) - request.cached_tokens
            self.running[request.row] = request
        self.waiting = still
