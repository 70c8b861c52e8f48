from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentrl.errors import ConfigError, RecordMismatch
from agentrl.run_dir import EpisodesWriter, read_episodes
from agentrl.run_dir.episodes import from_table, to_table
from agentrl.run_dir.values import Opaque, dump_value, load_value
from agentrl.tokens import TokenRecord, seal, verify_segment
from agentrl.types import (
    Episode,
    EpisodeStop,
    Invalid,
    Message,
    Score,
    Segment,
    StopReason,
    Task,
    ToolCall,
    TurnRecord,
)


def segment(seed: int = 0, turns: int = 2) -> Segment:
    rng = np.random.default_rng(seed)
    record = TokenRecord(vocab_size=1000)
    record.append_prompt([5, 6, 7])
    for turn in range(turns):
        if turn:
            record.append_environment([3, 20])
        experts = rng.integers(0, 4, (4, 2)).astype(np.int16)
        logprobs = -rng.exponential(size=4)
        record.append_sampled(
            seal(
                rng.integers(0, 999, 4), logprobs, [turn] * 4, StopReason.STOP, {"experts": experts}
            )
        )
    return record.close()


def episode(**changes: Any) -> Episode:
    call = ToolCall(name="add", arguments={"a": 1, "deep": {"x": [None, 1.5]}}, id="call_0")
    full = Episode(
        id="s000001-t00003-m2-a0",
        env="calculator",
        task=Task(prompt="1+1?", answer=2, data={"n": (1, 2)}),
        split="train",
        group=3,
        member=2,
        attempt=0,
        seed=2**64 - 1,
        segments=(segment(0), segment(1, turns=1)),
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="assistant", reasoning="hm", tool_calls=(call,)),
            Message(role="tool", content="2", tool_call_id="call_0", name="add"),
        ),
        turns=(
            TurnRecord(reward=0.1, parts={"brief": 0.5}, state_key="k", num_sampled=4, num_calls=1),
            TurnRecord(reward=1.0, call_errors=("malformed",), cached_tokens=7, generate_s=0.25),
        ),
        stop=EpisodeStop.FINISHED,
        outcome=Score(value=1.0, parts={"correct": 1.0}),
        answer={"x": [1, "é"]},
        wall_s=1.5,
        score_s=0.01,
    )
    return replace(full, **changes)


def assert_same(got: object, expected: object) -> None:
    """Equal, also in the arrays, their types and their shapes."""
    assert type(got) is type(expected)
    if (parts := _parts(got)) is None:
        assert got == expected
    else:
        others = _parts(expected) or {}
        assert list(parts) == list(others)
        for name, part in parts.items():
            assert_same(part, others[name])


def _parts(value: object) -> dict[object, object] | None:
    """What a composed value is made of; None for a simple one."""
    if isinstance(value, Episode | Segment):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.ndarray):
        array = cast("NDArray[np.generic]", value)
        return {"dtype": array.dtype, "shape": array.shape, "bytes": array.tobytes()}
    if isinstance(value, tuple):
        return dict(enumerate(cast("tuple[object, ...]", value)))
    return cast("dict[object, object]", value) if isinstance(value, dict) else None


def read_table(path: Path) -> pa.Table:
    return pq.read_table(path)  # pyright: ignore[reportUnknownMemberType]  # its stub is partial


def test_a_file_says_which_episodes_nobody_trained_on() -> None:
    """Those of before that column was there were all trained on."""
    table = to_table([episode(), episode(id="b", dropped="flat")], run="run", step=1)
    assert table["dropped"].to_pylist() == [None, "flat"]
    assert [e.dropped for e in from_table(table)] == ["", "flat"]
    older = table.drop_columns(["dropped"])
    assert [e.dropped for e in from_table(older)] == ["", ""]


def test_an_episode_is_read_back_equal_and_verifies(tmp_path: Path) -> None:
    writer = EpisodesWriter(tmp_path / "episodes", "calculator-001")
    written = [episode(), episode(id="b", group=4)]
    path = writer.write(12, written)
    assert path == tmp_path / "episodes" / "step-000012.parquet"
    read = read_episodes(path)
    for one, other in zip(read, written, strict=True):
        assert_same(one, other)
    for part in read[0].segments:
        verify_segment(part, read[0].id)
    flipped = read[0].segments[0].ids_T.copy()
    flipped[4] ^= 1
    with pytest.raises(RecordMismatch):
        verify_segment(replace(read[0].segments[0], ids_T=flipped), read[0].id)


def test_an_invalid_episode_has_a_reason_and_no_return(tmp_path: Path) -> None:
    bad = episode(
        outcome=Invalid(reason="server said 500\ud800", blame="engine", retryable=False),
        stop=EpisodeStop.INVALID,
        segments=(),
        turns=(),
    )
    path = EpisodesWriter(tmp_path, "r").write(1, [bad])
    row = read_table(path).to_pylist()[0]
    assert row["valid"] is False
    assert row["return"] is None
    assert row["score"] is None
    outcome = Invalid(reason="server said 500\\ud800", blame="engine", retryable=False)
    assert_same(read_episodes(path)[0], replace(bad, outcome=outcome))


def test_the_columns_are_plain_values(tmp_path: Path) -> None:
    path = EpisodesWriter(tmp_path, "calculator-001").write(3, [episode()], kind="eval")
    assert path.name == "eval-000003.parquet"
    row = read_table(path).to_pylist()[0]
    names = ("run", "step", "env", "group")
    assert [row[name] for name in names] == ["calculator-001", 3, "calculator", 3]
    assert row["return"] == 1.1
    assert row["num_trained"] == 12
    assert row["mask"][0] == [False] * 3 + [True] * 4 + [False] * 2 + [True] * 4
    assert row["token_turns"][1] == [0] * 7
    assert row["turn_rewards"] == [0.1, 1.0]
    assert row["answer"] == '{"x": [1, "é"]}'
    assert '"role": "tool"' in row["messages"]


def test_no_episodes_make_an_empty_file(tmp_path: Path) -> None:
    assert read_episodes(EpisodesWriter(tmp_path, "r").write(1, [])) == []


def test_a_resumed_run_drops_later_files(tmp_path: Path) -> None:
    writer = EpisodesWriter(tmp_path, "r")
    for step in (1, 2, 3):
        writer.write(step, [episode(id=f"e{step}")])
    writer.write(2, [episode(id="v2")], kind="eval")
    writer.write(3, [episode(id="v3")], kind="eval")
    writer.truncate_after(2)
    assert [e.id for e in read_episodes(tmp_path)] == ["v2", "e1", "e2"]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("nonsense")
    table = read_table(EpisodesWriter(tmp_path, "r").write(1, []))
    bare = table.replace_schema_metadata()
    pq.write_table(bare, tmp_path / "y.parquet")  # pyright: ignore[reportUnknownMemberType]  # partial
    reasons = {"x": "cannot be read", "y": "is not an episode file", "z": "cannot be read"}
    for name, reason in reasons.items():
        with pytest.raises(ConfigError, match=reason):
            read_episodes(tmp_path / f"{name}.parquet")


_WORDS = st.text(max_size=8) | st.sampled_from(["$tuple", "é\ud800", "\x00"])
_NUMBERS = st.booleans() | st.integers() | st.floats(allow_nan=False)
_PLAIN = st.none() | _NUMBERS | _WORDS | st.binary(max_size=4)
_VALUES: st.SearchStrategy[object] = st.recursive(
    _PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_WORDS | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers() | _WORDS, max_size=3)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)
_FLOATS = st.floats(allow_nan=False)


@given(_VALUES)
def test_values_are_read_back_equal(value: object) -> None:
    assert_same(load_value(dump_value(value)), value)


def test_a_value_that_cannot_be_stored_is_kept_as_its_repr() -> None:
    back = load_value(dump_value({"a": object}))
    assert back == {"a": Opaque("<class 'object'>")}
    assert load_value(dump_value(back)) == back


_MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=_WORDS,
    tool_calls=st.lists(
        st.builds(ToolCall, name=_WORDS, arguments=st.dictionaries(_WORDS, _VALUES, max_size=2)),
        max_size=2,
    ).map(tuple),
    reasoning=_WORDS,
    tool_call_id=_WORDS,
    name=_WORDS,
)
_SAFE = st.text(st.characters(codec="utf-8"), max_size=5)
_TURNS = st.builds(
    TurnRecord,
    reward=_FLOATS,
    parts=st.dictionaries(_SAFE, _FLOATS, max_size=2),
    state_key=st.none() | _SAFE,
    num_sampled=st.integers(0, 9),
    call_errors=st.lists(_SAFE, max_size=2).map(tuple),
    generate_s=_FLOATS,
)
_CHANGES = st.fixed_dictionaries(
    {
        "task": st.builds(
            Task,
            prompt=_WORDS | st.lists(_MESSAGES, max_size=2).map(tuple),
            answer=_VALUES,
            data=st.dictionaries(_WORDS, _VALUES, max_size=2),
            id=st.just("id"),
        ),
        "messages": st.lists(_MESSAGES, max_size=3).map(tuple),
        "turns": st.lists(_TURNS, max_size=3).map(tuple),
        "answer": _VALUES,
        "stop": st.sampled_from(EpisodeStop),
        "segments": st.lists(st.sampled_from([segment(i, i % 3) for i in range(5)])).map(tuple),
        "seed": st.integers(0, 2**64 - 1),
        "outcome": st.builds(
            Score,
            value=st.floats(allow_nan=False, allow_infinity=False),
            parts=st.dictionaries(_SAFE, st.floats(-1, 1), max_size=2),
        )
        | st.builds(Invalid, reason=_SAFE, blame=st.sampled_from(["policy", "sandbox"])),
    }
)


@given(st.lists(_CHANGES, max_size=3))
@settings(max_examples=20, deadline=None)
def test_any_episode_is_read_back_equal(changes: list[dict[str, Any]]) -> None:
    episodes = [episode(**change) for change in changes]
    read = from_table(to_table(episodes, run="r", step=1))
    for one, other in zip(read, episodes, strict=True):
        assert_same(one, other)
