"""The token record: what goes in, what comes out, and that any change is refused."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentrl.errors import EngineError, RecordMismatch
from agentrl.tokens import TokenRecord, seal, verify_batch, verify_segment
from agentrl.tokens.hash_chain import Fields, chain_digest, pack, token_marks
from agentrl.types import Batch, Completion, Segment, Source, StopReason

VOCAB = 100
Channels = Mapping[str, NDArray[np.generic]]


def answer(ids: Sequence[int], version: int = 4, channels: Channels | None = None) -> Completion:
    logprobs = [-0.5 - 0.01 * i for i in range(len(ids))]
    return seal(ids, logprobs, [version] * len(ids), StopReason.STOP, channels)


def experts(num: int) -> Channels:
    return {
        "experts": np.arange(num * 3, dtype=np.int8).reshape(num, 3) + 1,
        "entropy": np.linspace(0.5, 1, num, dtype=np.float64),
    }


def two_turns(channels: bool = False) -> Segment:
    record = TokenRecord(VOCAB)
    record.append_prompt([5, 6, 7, 8])
    record.append_sampled(answer([10, 11, 2], 4, experts(3) if channels else None))
    record.append_environment([3, 20, 21, 3])
    record.append_sampled(answer([12, 2], 5, experts(2) if channels else None))
    return record.close()


def to_batch(segments: Sequence[Segment]) -> Batch:
    rows = range(len(segments))
    return Batch(
        ids_N=np.concatenate([s.ids_T for s in segments]),
        mask_N=np.concatenate([s.mask_T for s in segments]),
        logprobs_N=np.concatenate([s.logprobs_T for s in segments]),
        sources_N=np.concatenate([s.sources_T for s in segments]),
        turns_N=np.concatenate([s.turns_T for s in segments]),
        versions_N=np.concatenate([s.versions_T for s in segments]),
        marks_N=np.concatenate([s.marks_T for s in segments]),
        offsets_R1=np.cumsum([0, *(s.num_tokens for s in segments)]),
        episode_R=np.array(rows, dtype=np.int32),
        digests_R=tuple(s.digest for s in segments),
        appends_A=np.concatenate([s.appends_A for s in segments]),
        append_offsets_R1=np.cumsum([0, *(len(s.appends_A) for s in segments)]),
        episode_ids=tuple(f"s0-t{r}-m0-a0" for r in rows),
        group_E=np.array(rows, dtype=np.int32),
        rewards_E=np.zeros(len(segments)),
        temperature=1.0,
        channels={
            name: np.concatenate([s.channels[name] for s in segments])
            for name in segments[0].channels
        },
    )


def test_the_worked_example() -> None:
    segment = two_turns()
    assert segment.ids_T.tolist() == [5, 6, 7, 8, 10, 11, 2, 3, 20, 21, 3, 12, 2]
    assert segment.mask_T.tolist() == [False] * 4 + [True] * 3 + [False] * 4 + [True] * 2
    assert segment.turns_T.tolist() == [0] * 11 + [1] * 2
    assert segment.versions_T.tolist() == [-1] * 4 + [4] * 3 + [-1] * 4 + [5] * 2
    assert segment.sources_T.tolist() == [0] * 4 + [1] * 3 + [2] * 4 + [1] * 2
    assert segment.appends_A.tolist() == [4, 3, 4, 2]
    expected = [0, 0, 0, 0, -0.5, -0.51, -0.52, 0, 0, 0, 0, -0.5, -0.51]
    np.testing.assert_allclose(segment.logprobs_T, expected, rtol=1e-6)


def test_sampled_ids_are_kept_as_they_came() -> None:
    record = TokenRecord(VOCAB)
    record.append_prompt([1])
    expected = [1]
    for turn in range(5):
        assert record.turn == turn
        sampled = [30 + turn, 31, 31, 2]
        record.append_sampled(answer(sampled))
        record.append_environment([3, 40 + turn])
        expected += [*sampled, 3, 40 + turn]
    assert record.ids == expected
    assert record.num_tokens == len(expected)
    assert verify_segment(record.close(), "e") == 20


def test_untrained_completions_are_recorded_without_mask() -> None:
    record = TokenRecord(VOCAB)
    record.append_prompt([1, 2])
    record.append_sampled(answer([3, 4]), trained=False)
    segment = record.close()
    assert segment.num_trained == 0
    assert not segment.logprobs_T.any()
    assert segment.versions_T.tolist() == [-1, -1, 4, 4]
    assert verify_segment(segment, "e") == 0


def test_channels_are_zero_where_nothing_was_sampled() -> None:
    segment = two_turns(channels=True)
    given_experts = segment.channels["experts"]
    assert given_experts.shape == (13, 3)
    assert given_experts.dtype == np.int8
    assert not given_experts[segment.sources_T != Source.MODEL].any()
    np.testing.assert_array_equal(given_experts[4:7], experts(3)["experts"])
    assert verify_segment(segment, "e") == 5


def test_the_order_of_appends_is_enforced() -> None:
    record = TokenRecord(VOCAB)
    with pytest.raises(ValueError, match="after nothing"):
        record.append_sampled(answer([1]))
    with pytest.raises(ValueError, match="after nothing"):
        record.append_environment([1])
    with pytest.raises(ValueError, match="empty"):
        record.close()
    record.append_prompt([1])
    with pytest.raises(ValueError, match="prompt tokens after prompt"):
        record.append_prompt([1])
    with pytest.raises(ValueError, match="environment tokens after prompt"):
        record.append_environment([1])
    record.append_sampled(answer([1]))
    with pytest.raises(ValueError, match="model tokens after prompt, model"):
        record.append_sampled(answer([1]))
    record.close()
    with pytest.raises(ValueError, match="closed"):
        record.append_environment([1])


@pytest.mark.parametrize("ids", [[-1], [VOCAB], [1, 2, VOCAB + 5], []])
def test_given_ids_must_be_in_the_vocabulary(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt"):
        TokenRecord(VOCAB).append_prompt(ids)


def test_sampled_ids_must_be_in_the_vocabulary() -> None:
    record = TokenRecord(VOCAB)
    record.append_prompt([1])
    with pytest.raises(EngineError, match="sampled id 100, but the tokenizer has 100 ids"):
        record.append_sampled(answer([1, VOCAB]))


def test_channels_must_not_change_between_turns() -> None:
    record = TokenRecord(VOCAB)
    record.append_prompt([1])
    record.append_sampled(answer([1], channels=experts(1)))
    record.append_environment([3])
    with pytest.raises(EngineError, match="same channels in every turn"):
        record.append_sampled(answer([1]))


def changed(values: NDArray[np.generic], index: int, bit: int) -> NDArray[np.generic]:
    """A copy with one bit of one entry flipped."""
    flat = np.array(values)
    raw = flat.view(np.uint8).reshape(-1)
    raw[index * flat.dtype.itemsize + bit // 8] ^= np.uint8(1 << bit % 8)
    return flat


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("ids_T", "token 1 "),
        ("logprobs_T", "token 0 "),
        ("versions_T", "token 0 "),
        ("channel", r"token \d "),
        ("stop_reason", "the stop reason "),
    ],
)
def test_a_completion_changed_after_sealing_is_refused(field: str, named: str) -> None:
    completion = answer([10, 11, 2], channels=experts(3))
    if field == "channel":
        other = {**completion.channels, "experts": changed(completion.channels["experts"], 4, 1)}
        completion = replace(completion, channels=other)
    elif field == "ids_T":
        completion = replace(completion, ids_T=np.array([10, 12, 2], dtype=np.int32))
    elif field == "logprobs_T":
        completion = replace(completion, logprobs_T=completion.logprobs_T * np.float32(0.5))
    elif field == "stop_reason":
        completion = replace(completion, stop_reason=StopReason.LENGTH)
    else:
        completion = replace(completion, versions_T=completion.versions_T + np.int32(1))
    record = TokenRecord(VOCAB)
    record.append_prompt([1])
    with pytest.raises(RecordMismatch, match=f"{named}of .* turn 0"):
        record.append_sampled(completion)


COLUMNS = {
    "ids_N": 32,
    "mask_N": 1,
    "logprobs_N": 32,
    "sources_N": 8,
    "turns_N": 16,
    "versions_N": 32,
    "marks_N": 32,
}


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_flipped_bit_of_a_token_is_refused_by_name(data: st.DataObject) -> None:
    batch = to_batch([two_turns(channels=True), two_turns(channels=True)])
    column = data.draw(st.sampled_from(sorted(COLUMNS)))
    index = data.draw(st.integers(0, batch.num_tokens - 1))
    bit = data.draw(st.integers(0, COLUMNS[column] - 1))
    flipped: dict[str, Any] = {column: changed(getattr(batch, column), index, bit)}
    broken = replace(batch, **flipped)
    row, position = divmod(index, 13)
    with pytest.raises(RecordMismatch, match=rf"s0-t{row}-m0-a0: token {position} \(turn"):
        verify_batch(broken)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_of_a_channel_is_refused_by_name(data: st.DataObject) -> None:
    batch = to_batch([two_turns(channels=True), two_turns(channels=True)])
    name, bits, width = data.draw(st.sampled_from([("experts", 8, 3), ("entropy", 64, 1)]))
    index = data.draw(st.integers(0, batch.num_tokens * width - 1))
    bit = data.draw(st.integers(0, bits - 1))
    channels = {**batch.channels, name: changed(batch.channels[name], index, bit)}
    position = index // width % 13
    with pytest.raises(RecordMismatch, match=rf"token {position} \(turn"):
        verify_batch(replace(batch, channels=channels))


def test_a_channel_changed_together_with_its_marks_is_refused() -> None:
    good = two_turns(channels=True)
    values = good.channels["experts"]
    renamed = {"Experts": values, "entropy": good.channels["entropy"]}
    for channels in (
        {**good.channels, "experts": changed(values, 13, 0)},
        {**good.channels, "experts": values.view(np.uint8)},
        renamed,
    ):
        broken = replace(good, channels=channels)
        broken = replace(broken, marks_T=token_marks(pack(fields_of(broken))))
        with pytest.raises(RecordMismatch, match="digest of the hash chain differs"):
            verify_segment(broken, "e")


def fields_of(segment: Segment) -> Fields:
    return Fields(
        ids=segment.ids_T,
        mask=segment.mask_T,
        logprobs=segment.logprobs_T,
        sources=segment.sources_T,
        turns=segment.turns_T,
        versions=segment.versions_T,
        channels=segment.channels,
    )


@given(row=st.integers(0, 1), byte=st.integers(0, 15), bit=st.integers(0, 7))
@settings(max_examples=50, deadline=None)
def test_a_changed_digest_is_refused(row: int, byte: int, bit: int) -> None:
    batch = to_batch([two_turns(), two_turns()])
    digests = [bytearray(digest) for digest in batch.digests_R]
    digests[row][byte] ^= 1 << bit
    with pytest.raises(RecordMismatch, match=f"s0-t{row}-m0-a0: the digest"):
        verify_batch(replace(batch, digests_R=tuple(map(bytes, digests))))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 2, 4, 2], "append 0 mixes"),
        ([4, 3, 3, 3], "append 3 mixes"),
        ([4, 3, 4, 1], "have 12 tokens, the row has 13"),
        ([4, 1, 2, 6], "append 3 mixes"),
        ([4, 3, 6, 0], "the row has 13"),
    ],
)
def test_changed_append_lengths_are_refused(lengths: list[int], message: str) -> None:
    broken = replace(two_turns(), appends_A=np.array(lengths, dtype=np.int32))
    with pytest.raises(RecordMismatch, match=message):
        verify_segment(broken, "e")


def test_an_append_cut_in_two_is_refused() -> None:
    broken = replace(two_turns(), appends_A=np.array([4, 1, 2, 4, 2], dtype=np.int32))
    with pytest.raises(RecordMismatch, match="digest of the hash chain differs"):
        verify_segment(broken, "e")


def test_tokens_swapped_between_rows_with_their_marks_are_refused() -> None:
    first, second = two_turns(), two_turns()
    batch = to_batch([first, second])
    order = np.arange(batch.num_tokens)
    order[[4, 5]] = order[[5, 4]]
    swapped: dict[str, Any] = {name: getattr(batch, name)[order] for name in COLUMNS}
    with pytest.raises(RecordMismatch, match="s0-t0-m0-a0: the digest"):
        verify_batch(replace(batch, **swapped))


def test_wrong_shapes_and_types_are_refused() -> None:
    batch = to_batch([two_turns(), two_turns()])
    with pytest.raises(RecordMismatch, match="int64"):
        verify_batch(replace(batch, ids_N=batch.ids_N.astype(np.int64)))
    with pytest.raises(RecordMismatch, match="mask have shape"):
        verify_batch(replace(batch, mask_N=batch.mask_N[:-1]))
    with pytest.raises(RecordMismatch, match="row offsets"):
        verify_batch(replace(batch, offsets_R1=np.array([0, 13, 25])))
    with pytest.raises(RecordMismatch, match="1 digests for 2 rows"):
        verify_batch(replace(batch, digests_R=batch.digests_R[:1]))


def test_a_long_batch_is_verified_fast() -> None:
    record = TokenRecord(VOCAB)
    record.append_prompt([1] * 50)
    for _ in range(4):
        record.append_sampled(answer([7] * 28 + [2]))
        record.append_environment([3] * 8)
    batch = to_batch([record.close()] * 512)
    best = min(_seconds(batch) for _ in range(3))
    assert batch.num_tokens == 512 * 198
    assert best < 0.2


def _seconds(batch: Batch) -> float:
    begin = time.thread_time()
    assert verify_batch(batch) == batch.num_trained
    return time.thread_time() - begin


def test_a_record_made_elsewhere_must_follow_the_rules() -> None:
    good = two_turns()

    def forged(changes: dict[str, Any]) -> Segment:
        """A segment whose marks and digest were computed after the change."""
        segment = replace(good, **changes)
        packed = pack(fields_of(segment))
        digest = chain_digest(packed, segment.appends_A.tolist())
        return replace(segment, marks_T=token_marks(packed), digest=digest)

    cases: list[tuple[dict[str, Any], str]] = [
        ({"mask_T": ~good.mask_T}, "token 0 .* did not sample"),
        ({"turns_T": good.turns_T - np.int16(1)}, "token 0 .* wrong turn"),
        ({"versions_T": np.full(13, 4, dtype=np.int32)}, "token 0 .* version"),
        ({"logprobs_T": np.full(13, -1, dtype=np.float32)}, "token 0 .* has a logprob"),
        ({"sources_T": np.ones(13, dtype=np.int8)}, "token 0 .* out of order"),
        ({"appends_A": np.array([4, 2, 1, 4, 2], dtype=np.int32)}, "token 6 .* out of order"),
        ({"appends_A": np.array([4, 4, 3, 2], dtype=np.int32)}, "token 7 .* source"),
    ]
    for changes, message in cases:
        with pytest.raises(RecordMismatch, match=message):
            verify_segment(forged(changes), "e")


def test_seal_refuses_answers_that_do_not_add_up() -> None:
    stop = StopReason.STOP
    with pytest.raises(EngineError, match="12 tokens but 0 logprobs; ask the engine"):
        seal([1] * 12, [], [0] * 12, stop)
    with pytest.raises(EngineError, match="2 tokens but 3 logprobs"):
        seal([1, 2], [-1.0] * 3, [0, 0], stop)
    with pytest.raises(EngineError, match="2 tokens but 1 policy versions"):
        seal([1, 2], [-1.0] * 2, [0], stop)
    with pytest.raises(EngineError, match="run from -1 to 2"):
        seal([-1, 2], [-1.0] * 2, [0, 0], stop)
    with pytest.raises(EngineError, match="integers"):
        seal([1.0, 2.0], [-1.0] * 2, [0, 0], stop)  # type: ignore[list-item]
    with pytest.raises(EngineError, match="integers"):
        seal([True], [-1.0], [0], stop)
    with pytest.raises(EngineError, match="token 1 is nan"):
        seal([1, 2], [-1.0, float("nan")], [0, 0], stop)
    with pytest.raises(EngineError, match="token 0 is -inf"):
        seal([1], [float("-inf")], [0], stop)
    with pytest.raises(EngineError, match=r"token 1 is 0\.01"):
        seal([1, 2], [-1.0, 0.01], [0, 0], stop)
    with pytest.raises(EngineError, match="None"):
        seal([1], [None], [0], stop)  # type: ignore[list-item]
    with pytest.raises(EngineError, match="no tokens but stop reason stop"):
        seal([], [], [], stop)
    with pytest.raises(EngineError, match="'experts' has shape"):
        seal([1], [-1.0], [0], stop, experts(2))


def test_seal_freezes_what_it_digests() -> None:
    logprobs = np.array([-1.0, 5e-5], dtype=np.float32)
    completion = seal([1, 2], logprobs, [0, 0], StopReason.LENGTH, cached_tokens=7)
    logprobs[0] = -2
    assert completion.logprobs_T[0] == -1
    assert completion.cached_tokens == 7
    with pytest.raises(ValueError, match="read-only"):
        completion.ids_T[0] = 3
    aborted = seal([], [], [], StopReason.ABORT)
    assert len(aborted.ids_T) == 0


@given(
    ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    stop=st.sampled_from(StopReason),
)
def test_digests_tell_answers_apart(ids: list[int], stop: StopReason) -> None:
    num = len(ids)
    digest = seal(ids, [-1.0] * num, [3] * num, stop).digest
    other = StopReason.ABORT if stop is not StopReason.ABORT else StopReason.STOP
    assert digest == seal(ids, [-1.0] * num, [3] * num, stop).digest
    assert digest != seal(ids, [-1.0] * num, [3] * num, other).digest
    assert digest != seal([*ids, 0], [-1.0] * (num + 1), [3] * (num + 1), stop).digest


def test_channels_of_given_tokens_come_with_the_next_completion() -> None:
    rows = np.arange(1, 40, dtype=np.int8).reshape(13, 3)
    record = TokenRecord(VOCAB)
    record.append_prompt([5, 6, 7, 8])
    for ids, start, stop in (([10, 11, 2], 4, 7), ([12, 2], 11, 13)):
        completion = seal(
            ids,
            [-0.5] * len(ids),
            [4] * len(ids),
            StopReason.STOP,
            {"experts": rows[start:stop]},
            prompt_channels={"experts": rows[:start]},
        )
        other = {"experts": changed(completion.prompt_channels["experts"], 1, 0)}
        altered = replace(completion, prompt_channels=other)
        with pytest.raises(RecordMismatch, match="a side channel of the prompt of the completion"):
            record.append_sampled(altered)
        record.append_sampled(completion)
        record.append_environment([3, 20, 21, 3])
    segment = record.close()
    # What was given after the last completion, no pass of the model has read.
    np.testing.assert_array_equal(segment.channels["experts"][:13], rows)
    assert not segment.channels["experts"][13:].any()
    assert verify_segment(segment, "e") == 5
    late = replace(segment, channels={"experts": changed(segment.channels["experts"], 40, 0)})
    late = replace(late, marks_T=token_marks(pack(fields_of(late))))
    with pytest.raises(RecordMismatch, match=r"token 13 .* nothing was sampled after"):
        verify_segment(late, "e")


def test_channels_of_a_prompt_must_have_a_row_for_each_token() -> None:
    record = TokenRecord(VOCAB)
    record.append_prompt([1, 2])
    short = seal([3], [-0.5], [4], StopReason.STOP, experts(1), prompt_channels=experts(1))
    with pytest.raises(EngineError, match=r"has 1 rows of side channel .* a prompt of 2 tokens"):
        record.append_sampled(short)
