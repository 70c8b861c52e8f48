"""`TokenRecord`: the append-only record of one segment; the only place where tokens get masks.

    prompt -> sampled -> environment -> sampled -> ... -> close

An example with two turns (`E` marks ids of the environment, `*` what is trained):

    append       prompt      sampled     environment   sampled
    ids          5 6 7 8     10 11 2     3 20 21 3     12 2
    mask         . . . .     *  *  *     .  .  .  .    *  *
    turn         0 0 0 0     0  0  0     0  0  0  0    1  1
    version     -1-1-1-1     4  4  4    -1 -1 -1 -1    5  5

Id 2 is the stop token: the policy sampled it, so it is trained; the separator after it (id 3) is
the environment's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import EngineError, RecordMismatch
from agentrl.tokens.chain import (
    START,
    Fields,
    channel_header,
    completion_digest,
    completion_marks,
    link,
    marks,
    pack,
)
from agentrl.types import Completion, Segment, Source

_NO_VERSION = -1


class TokenRecord:
    """Collects the tokens of one segment in the order in which the model reads them."""

    def __init__(self, vocab_size: int, first_turn: int = 0) -> None:
        """Ids must be below `vocab_size`; `first_turn` counts the turns of earlier segments."""
        self._vocab_size = vocab_size
        self._ids: list[int] = []
        self._parts: list[Fields] = []
        self._marks: list[NDArray[np.uint32]] = []
        self._sources: list[Source] = []
        self._digest = START
        self._turn = self._first_turn = first_turn
        self._channels: dict[str, NDArray[np.generic]] | None = None
        self._closed = False

    @property
    def ids(self) -> list[int]:
        """All ids so far: what the model has read. A copy."""
        return self._ids.copy()

    @property
    def num_tokens(self) -> int:
        """The number of ids so far."""
        return len(self._ids)

    @property
    def turn(self) -> int:
        """The turn of the next completion: how many the episode has had so far."""
        return self._turn

    def append_prompt(self, ids: Sequence[int]) -> None:
        """Begin the record. Raises ValueError if it has begun, or for ids out of range."""
        self._check_order(Source.PROMPT, allowed=not self._sources)
        self._append_given(ids, Source.PROMPT, turn=self._turn)

    def append_environment(self, ids: Sequence[int]) -> None:
        """Add what the environment answered; it belongs to the turn that it answers.

        Raises ValueError if nothing was sampled before, or for ids out of range.
        """
        self._check_order(Source.ENVIRONMENT, allowed=self._turn > self._first_turn)
        self._append_given(ids, Source.ENVIRONMENT, turn=self._turn - 1)

    def append_sampled(self, completion: Completion, trained: bool = True) -> None:
        """Add a completion, all of it, exactly as sampled; untrained ones get mask false.

        Raises RecordMismatch if the completion is not what the engine's adapter sealed, EngineError
        if it is empty, has an id out of range or other side channels than the ones before it, and
        ValueError after another completion.
        """
        last = self._sources[-1] if self._sources else Source.MODEL
        self._check_order(Source.MODEL, allowed=last is not Source.MODEL)
        self._check_completion(completion)
        num = len(completion.ids_T)
        logprobs_T = completion.logprobs_T if trained else np.zeros(num, dtype=np.float32)
        self._append(
            Fields(
                ids=completion.ids_T,
                mask=np.full(num, trained),
                logprobs=logprobs_T,
                sources=np.full(num, Source.MODEL, dtype=np.int8),
                turns=np.full(num, self._turn, dtype=np.int16),
                versions=completion.versions_T,
                channels=completion.channels,
            ),
            Source.MODEL,
        )
        self._channels = {name: values[:0] for name, values in completion.channels.items()}
        self._turn += 1

    def close(self) -> Segment:
        """The finished segment; nothing can be appended afterwards."""
        if not self._sources:
            raise ValueError("the record is empty; append a prompt before closing it")
        self._closed = True
        fields = _joined(self._parts, self._channels or {})
        return Segment(
            ids_T=fields.ids,
            mask_T=fields.mask,
            logprobs_T=fields.logprobs,
            sources_T=fields.sources,
            turns_T=fields.turns,
            versions_T=fields.versions,
            channels=fields.channels,
            appends_A=np.array([len(part.ids) for part in self._parts], dtype=np.int32),
            marks_T=np.concatenate(self._marks),
            digest=self._digest,
        )

    def _check_order(self, source: Source, allowed: bool) -> None:
        if self._closed:
            raise ValueError("the record is closed; begin a new one for further tokens")
        if not allowed:
            so_far = ", ".join(s.name.lower() for s in self._sources[-3:]) or "nothing"
            raise ValueError(
                f"cannot append {source.name.lower()} tokens after {so_far}; the order is one "
                "prompt, then completions with environment tokens between them"
            )

    def _check_completion(self, completion: Completion) -> None:
        recomputed = completion_digest(
            completion.ids_T,
            completion.logprobs_T,
            completion.versions_T,
            completion.stop_reason,
            completion.channels,
        )
        if recomputed != completion.digest:
            raise RecordMismatch(
                f"{_first_change(completion)} of the completion of turn {self._turn} is not what "
                "the engine's adapter sealed; append completions unchanged, as `seal` made them"
            )
        if not len(completion.ids_T):
            raise EngineError(f"the completion of turn {self._turn} is empty; nothing to record")
        if int(completion.ids_T.max()) >= self._vocab_size:
            raise EngineError(
                f"the engine sampled id {completion.ids_T.max()} but the vocabulary has "
                f"{self._vocab_size} ids; check that engine and tokenizer are of one model"
            )
        known = self._channels
        if known is not None and channel_header(known) != channel_header(completion.channels):
            raise EngineError(
                f"the completion of turn {self._turn} has the side channels "
                f"{sorted(completion.channels)}, those before it {sorted(known)}, or their types "
                "or shapes differ; an engine must give the same channels in every turn"
            )

    def _append_given(self, ids: Sequence[int], source: Source, turn: int) -> None:
        num = len(ids)
        if not num:
            raise ValueError(f"no {source.name.lower()} tokens were given; expected at least one")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise ValueError(
                f"{source.name.lower()} ids run from {min(ids)} to {max(ids)}, expected 0 to "
                f"{self._vocab_size - 1}; check that tokenizer and engine are of one model"
            )
        fields = Fields(
            ids=np.array(ids, dtype=np.int32),
            mask=np.zeros(num, dtype=np.bool_),
            logprobs=np.zeros(num, dtype=np.float32),
            sources=np.full(num, source, dtype=np.int8),
            turns=np.full(num, turn, dtype=np.int16),
            versions=np.full(num, _NO_VERSION, dtype=np.int32),
            channels={},
        )
        self._append(fields, source)

    def _append(self, fields: Fields, source: Source) -> None:
        packed = pack(fields)
        self._digest = link(self._digest, packed, slice(0, len(fields.ids)))
        self._marks.append(marks(packed))
        self._parts.append(fields)
        self._sources.append(source)
        self._ids.extend(fields.ids.tolist())


def _first_change(completion: Completion) -> str:
    """What differs in a completion from what was sealed."""
    marks_T = completion_marks(
        completion.ids_T, completion.logprobs_T, completion.versions_T, completion.channels
    )
    if len(marks_T) != len(completion.marks_T):
        return f"the number of tokens ({len(marks_T)})"
    changed = np.flatnonzero(marks_T != completion.marks_T)
    return f"token {changed[0]}" if len(changed) else "the stop reason"


def _joined(parts: Sequence[Fields], channels: dict[str, NDArray[np.generic]]) -> Fields:
    """One column each; channels are zero where the policy did not sample."""
    joined = {
        name: np.concatenate(
            [
                part.channels.get(name, np.zeros((len(part.ids), *empty.shape[1:]), empty.dtype))
                for part in parts
            ]
        )
        for name, empty in channels.items()
    }
    return Fields(
        ids=np.concatenate([part.ids for part in parts]),
        mask=np.concatenate([part.mask for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        sources=np.concatenate([part.sources for part in parts]),
        turns=np.concatenate([part.turns for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        channels=joined,
    )
