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
from agentrl.tokens.hash_chain import (
    START,
    channel_bytes,
    channel_header,
    completion_content,
    completion_digest,
    join_packed,
    link_digest,
    pack_append,
    token_marks,
    unpack,
)
from agentrl.types import Completion, Segment, Source
from agentrl.types.batch import Channels


class TokenRecord:
    """Collects the tokens of one segment in the order in which the model reads them."""

    def __init__(self, vocab_size: int, first_turn: int = 0) -> None:
        """Ids must be below `vocab_size`; `first_turn` counts the turns of earlier segments."""
        self._vocab_size = vocab_size
        self._ids: list[int] = []
        self._blocks: list[bytes] = []
        """The packed tokens of each append."""
        self._channels_of: list[Channels] = []
        """Of each completion with what was given before it: `_num_covered` tokens in all."""
        self._num_covered = 0
        self._lengths: list[int] = []
        self._sources: list[Source] = []
        self._digest = START
        self._turn = self._first_turn = first_turn
        self._channels: Channels | None = None
        """Without rows: what the side channels are."""
        self._closed = False

    @property
    def ids(self) -> Sequence[int]:
        """All ids so far: what the model has read. It grows with the record."""
        return self._ids

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
        self._check_order_of_appends(Source.PROMPT, allowed=not self._sources)
        self._append_tokens_not_sampled(ids, Source.PROMPT, turn=self._turn)

    def append_environment(self, ids: Sequence[int]) -> None:
        """Add what the environment answered; it belongs to the turn that it answers.

        Raises ValueError if nothing was sampled before, or for ids out of range.
        """
        self._check_order_of_appends(Source.ENVIRONMENT, allowed=self._turn > self._first_turn)
        self._append_tokens_not_sampled(ids, Source.ENVIRONMENT, turn=self._turn - 1)

    def append_sampled(self, completion: Completion, trained: bool = True) -> None:
        """Add a completion, all of it, exactly as sampled; untrained ones get mask false.

        Raises RecordMismatch if the completion is not what the engine's adapter sealed, EngineError
        if it is empty, has an id out of range or other side channels than the ones before it, and
        ValueError after another completion.
        """
        last = self._sources[-1] if self._sources else Source.MODEL
        self._check_order_of_appends(Source.MODEL, allowed=last is not Source.MODEL)
        self._check_completion_before_append(completion)
        ids, channels = completion.ids_T, completion.channels
        block = pack_append(
            ids,
            Source.MODEL,
            self._turn,
            mask=trained,
            logprobs=completion.logprobs_T if trained else None,
            versions=completion.versions_T,
        )
        given: Channels = self._add_prompt_channels(completion) if channels else {}
        self._append_block(ids.tolist(), Source.MODEL, block, given)
        if self._channels is None:
            self._channels = {name: values[:0] for name, values in channels.items()}
        self._turn += 1

    def close(self) -> Segment:
        """The finished segment; nothing can be appended afterwards."""
        if not self._sources:
            raise ValueError("the record is empty; append a prompt before closing it")
        self._closed = True
        channels = self._concatenate_side_channels()
        packed = join_packed(self._blocks, channels)
        fields = unpack(packed, channels)
        return Segment(
            ids_T=fields.ids,
            mask_T=fields.mask,
            logprobs_T=fields.logprobs,
            sources_T=fields.sources,
            turns_T=fields.turns,
            versions_T=fields.versions,
            channels=fields.channels,
            appends_A=np.array(self._lengths, dtype=np.int32),
            marks_T=token_marks(packed),
            digest=self._digest,
        )

    def _check_order_of_appends(self, source: Source, allowed: bool) -> None:
        if self._closed:
            raise ValueError("the record is closed; begin a new one for further tokens")
        if not allowed:
            so_far = ", ".join(s.name.lower() for s in self._sources[-3:]) or "nothing"
            raise ValueError(
                f"cannot append {source.name.lower()} tokens after {so_far}; the order is one "
                "prompt, then completions with environment tokens between them"
            )

    def _check_completion_before_append(self, completion: Completion) -> None:
        content = _pack_completion_content(completion)
        if completion_digest(content, completion.stop_reason) != completion.digest:
            raise RecordMismatch(
                f"{_name_change_since_seal(completion)} of the completion of turn {self._turn} is "
                "not what the engine's adapter sealed; append completions unchanged, as `seal` "
                "made them"
            )
        if not len(completion.ids_T):
            raise EngineError(f"the completion of turn {self._turn} is empty; nothing to record")
        if np.maximum.reduce(completion.ids_T) >= self._vocab_size:
            raise EngineError(
                f"the engine sampled id {completion.ids_T.max()}, but the tokenizer has "
                f"{self._vocab_size} ids: the model's matrix has rows that belong to no token, "
                "which the local engine leaves out and a server may sample; use --engine local, or "
                "check that engine and tokenizer are of one model"
            )
        known, found = self._channels, completion.channels
        is_same = not (known or found) or channel_header(known or {}) == channel_header(found)
        if known is not None and not is_same:
            raise EngineError(
                f"the completion of turn {self._turn} has the side channels "
                f"{sorted(completion.channels)}, those before it {sorted(known)}, or their types "
                "or shapes differ; an engine must give the same channels in every turn"
            )
        for name, values in completion.prompt_channels.items():
            if len(values) != self.num_tokens or name not in completion.channels:
                raise EngineError(
                    f"the completion of turn {self._turn} has {len(values)} rows of side channel "
                    f"{name!r} for a prompt of {self.num_tokens} tokens; an engine must give one "
                    "for each, and those of what it sampled"
                )

    def _add_prompt_channels(self, completion: Completion) -> Channels:
        """The side channels of what was given since the last completion, and of this one."""
        num = self.num_tokens - self._num_covered
        self._num_covered = self.num_tokens + len(completion.ids_T)
        result: dict[str, NDArray[np.generic]] = {}
        for name, values in completion.channels.items():
            nothing = np.zeros((num, *values.shape[1:]), values.dtype)
            given = completion.prompt_channels.get(name, nothing)
            result[name] = np.concatenate([given[len(given) - num :], values])
        return result

    def _append_tokens_not_sampled(self, ids: Sequence[int], source: Source, turn: int) -> None:
        if not len(ids):
            raise ValueError(f"no {source.name.lower()} tokens were given; expected at least one")
        ids_N = np.array(ids, dtype=np.int64)
        if np.maximum.reduce(ids_N.view(np.uint64)) >= self._vocab_size:  # or below 0
            raise ValueError(
                f"{source.name.lower()} ids run from {min(ids)} to {max(ids)}, expected 0 to "
                f"{self._vocab_size - 1}; check that tokenizer and engine are of one model"
            )
        self._append_block(ids, source, pack_append(ids_N, source, turn), {})

    def _append_block(
        self, ids: Sequence[int], source: Source, block: bytes, channels: Channels
    ) -> None:
        extra = b""
        if channels:
            num = len(next(iter(channels.values())))
            extra = channel_header(channels) + channel_bytes(channels, num).tobytes()
            self._channels_of.append(channels)
        self._digest = link_digest(self._digest, block, extra)
        self._blocks.append(block)
        self._lengths.append(len(ids))
        self._sources.append(source)
        self._ids.extend(ids)

    def _concatenate_side_channels(self) -> Channels:
        """All rows of each side channel: zero where the engine gave none."""
        num = self.num_tokens - self._num_covered
        return {
            name: np.concatenate(
                [
                    *(channels[name] for channels in self._channels_of),
                    np.zeros((num, *empty.shape[1:]), empty.dtype),
                ]
            )
            for name, empty in (self._channels or {}).items()
        }


def _pack_completion_content(completion: Completion) -> bytes:
    return completion_content(
        completion.ids_T,
        completion.logprobs_T,
        completion.versions_T,
        completion.channels,
        completion.prompt_channels,
    )


def _name_change_since_seal(completion: Completion) -> str:
    """What differs in a completion from what was sealed."""
    num, content = len(completion.ids_T), _pack_completion_content(completion)
    if len(content) != len(completion.sealed):
        return f"the number of tokens ({num})"
    was, now = (np.frombuffer(b, dtype=np.uint8) for b in (completion.sealed, content))
    changed = np.flatnonzero(was != now)
    if not len(changed):
        return "the stop reason"
    # Three columns of four bytes, then the rows of the side channels.
    width = channel_bytes(completion.channels, num).shape[1]
    columns, rows = changed[changed < 12 * num], changed[changed >= 12 * num] - 12 * num
    tokens = [*(columns // 4 % num), *(rows // width if width else ())]
    first = min(tokens, default=num)
    return f"token {first}" if first < num else "a side channel of the prompt"
