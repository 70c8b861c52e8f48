"""The plan against full tensors: what a rank should hold is cut out of them and compared."""

from collections.abc import Mapping, Sequence
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentrl.engine.sglang.weights.layout import loader_layout, server_layout
from agentrl.errors import EngineError
from agentrl.weights.plan import (
    Held,
    Layout,
    Part,
    buckets,
    plan,
    shapes_of,
    unsharded,
    volume,
    whole,
)

Full = Mapping[str, NDArray[np.int64]]
HIDDEN, HEAD = 6, 2


def model(vocab: int, heads: int, kv_heads: int, inner: int, *, tied: bool, experts: int) -> Full:
    """Every value differs from all others."""
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, HIDDEN),
        f"{layer}.self_attn.q_proj.weight": (heads * HEAD, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (kv_heads * HEAD, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (kv_heads * HEAD, HIDDEN),
        f"{layer}.self_attn.q_proj.bias": (heads * HEAD,),
        f"{layer}.self_attn.k_proj.bias": (kv_heads * HEAD,),
        f"{layer}.self_attn.v_proj.bias": (kv_heads * HEAD,),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, heads * HEAD),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
    }
    if experts:
        shapes[f"{layer}.mlp.gate.weight"] = (experts, HIDDEN)
        shapes[f"{layer}.mlp.experts.gate_up_proj"] = (experts, 2 * inner, HIDDEN)
        shapes[f"{layer}.mlp.experts.down_proj"] = (experts, HIDDEN, inner)
    else:
        shapes[f"{layer}.mlp.gate_proj.weight"] = (inner, HIDDEN)
        shapes[f"{layer}.mlp.up_proj.weight"] = (inner, HIDDEN)
        shapes[f"{layer}.mlp.down_proj.weight"] = (HIDDEN, inner)
    if not tied:
        shapes["lm_head.weight"] = (vocab, HIDDEN)
    first, full = 1, dict[str, NDArray[np.int64]]()
    for name, shape in shapes.items():
        full[name] = np.arange(first, first + prod(shape)).reshape(shape)
        first += prod(shape)
    return full


def expected(full: Full, rank: int, size: int, kv_heads: int) -> dict[str, NDArray[np.int64]]:
    """What one rank of a server holds, cut from the full tensors."""

    def rows(name: str, parts: int = size) -> NDArray[np.int64]:
        return np.split(full[name], parts)[rank * parts // size]

    held: dict[str, NDArray[np.int64]] = {}
    kv = min(size, kv_heads)
    for name, tensor in full.items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            padded = np.zeros((ceil(len(tensor) / 64) * 64, HIDDEN), np.int64)
            padded[: len(tensor)] = tensor
            held[name] = np.split(padded, size)[rank]
        elif ".q_proj." in name:
            others = [rows(name.replace("q_proj", other), kv) for other in ("k_proj", "v_proj")]
            held[name.replace("q_proj", "qkv_proj")] = np.concatenate([rows(name), *others])
        elif ".gate_proj." in name:
            pair = [rows(name), rows(name.replace("gate_proj", "up_proj"))]
            held[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(pair)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            held[name] = np.split(tensor, size, axis=1)[rank]
        elif name.endswith("experts.gate_up_proj"):
            gate, up = np.split(tensor, 2, axis=1)
            both = [np.split(half, size, axis=1)[rank] for half in (gate, up)]
            held[name.replace("gate_up_proj", "w13_weight")] = np.concatenate(both, axis=1)
        elif name.endswith("experts.down_proj"):
            held[name.replace("down_proj", "w2_weight")] = np.split(tensor, size, axis=2)[rank]
        elif not name.endswith(("_proj.weight", "_proj.bias")):
            held[name] = tensor
    return held


def fsdp(full: Full, shards: int, replicas: int) -> Layout:
    """Rows in chunks as FSDP deals them: the last ranks may have fewer, or none."""
    layout: list[dict[str, Held]] = []
    for rank in range(shards * replicas):
        tensors: dict[str, Held] = {}
        for name, tensor in full.items():
            each = ceil(len(tensor) / shards)
            first = min(len(tensor), each * (rank % shards))
            last = min(len(tensor), first + each)
            box = ((first, last), *whole(tensor.shape[1:]))
            shape = (last - first, *tensor.shape[1:])
            parts = (Part(name, box, (0,) * tensor.ndim),) if last > first else ()
            tensors[name] = Held(shape, parts)
        layout.append(tensors)
    return layout


def held(full: Full, layout: Layout) -> list[dict[str, NDArray[np.int64]]]:
    """The tensors of a layout's ranks, filled."""
    ranks: list[dict[str, NDArray[np.int64]]] = []
    for tensors in layout:
        ranks.append({name: np.zeros(one.shape, np.int64) for name, one in tensors.items()})
        for name, one in tensors.items():
            for part in one.parts:
                where = tuple(
                    slice(at, at + stop - start)
                    for at, (start, stop) in zip(part.at, part.box, strict=True)
                )
                ranks[-1][name][where] = full[part.source][tuple(slice(*s) for s in part.box)]
    return ranks


def carried_out(
    full: Full, senders: Layout, receivers: Layout, most_bytes: int
) -> list[dict[str, NDArray[np.int64]]]:
    """What the receivers hold after all buckets; each place is written once."""
    value_bytes = 8
    moves = plan(senders, receivers)
    made = buckets(receivers, moves, value_bytes, most_bytes)
    assert [move for bucket in made for move in bucket.moves if move not in moves] == []
    assert sum(len(bucket.moves) for bucket in made) == len(moves)
    theirs = held(full, senders)
    filled: list[dict[str, NDArray[np.int64]]] = [{} for _ in receivers]
    for bucket in made:
        names = {name for _, name in bucket.places}
        assert bucket.num_bytes <= most_bytes or len(names) == 1
        memory = np.zeros(bucket.num_bytes // value_bytes, np.int64)
        views: dict[tuple[int, str], NDArray[np.int64]] = {}
        for key, place in bucket.places.items():
            start = place.offset // value_bytes
            views[key] = memory[start : start + prod(place.shape)].reshape(place.shape)
        for move in bucket.moves:
            target = views[move.receiver, move.target]
            where = tuple(slice(*side) for side in move.target_box)
            assert not target[where].any(), "written twice"
            source = theirs[move.sender][move.source]
            target[where] = source[tuple(slice(*side) for side in move.source_box)]
        for (receiver, name), view in views.items():
            filled[receiver][name] = view
    return filled


@settings(max_examples=60)
@given(
    st.integers(1, 150),
    st.sampled_from([(1, 4, 4), (2, 4, 2), (2, 2, 1), (4, 4, 2), (4, 8, 1), (4, 4, 4)]),
    st.booleans(),
    st.sampled_from([0, 0, 3]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([1, 400, 2000, 10**6]),
)
def test_every_rank_gets_its_slices_once(
    vocab: int,
    ranks: tuple[int, int, int],
    tied: bool,
    experts: int,
    shards: int,
    replicas: int,
    most_bytes: int,
) -> None:
    size, heads, kv_heads = ranks
    full = model(vocab, heads, kv_heads, 8, tied=tied, experts=experts)
    wanted = [expected(full, rank, size, kv_heads) for rank in range(size)]
    senders = fsdp(full, shards, replicas)
    shapes = {name: tensor.shape for name, tensor in full.items()}
    assert shapes_of(senders) == shapes
    receivers = server_layout([list(tensors) for tensors in wanted], shapes, kv_heads=kv_heads)
    found = carried_out(full, senders, receivers, most_bytes)
    assert [sorted(tensors) for tensors in found] == [sorted(tensors) for tensors in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        for name, tensor in ours.items():
            assert np.array_equal(tensor, theirs[name]), name


@settings(max_examples=20)
@given(st.integers(1, 5), st.sampled_from([0, 2]), st.sampled_from([1, 10**6]))
def test_an_unsharded_engine_and_a_servers_loader_get_everything(
    shards: int, experts: int, most_bytes: int
) -> None:
    full = model(7, 4, 2, 8, tied=False, experts=experts)
    senders = fsdp(full, shards, 1)
    shapes = shapes_of(senders)
    (ours,) = carried_out(full, senders, unsharded(shapes), most_bytes)
    assert all(np.array_equal(ours[name], tensor) for name, tensor in full.items())
    (theirs,) = carried_out(full, senders, loader_layout(shapes), most_bytes)
    if experts:
        third = theirs["model.layers.0.mlp.experts.1.up_proj.weight"]
        assert np.array_equal(third[0], full["model.layers.0.mlp.experts.gate_up_proj"][1, 8:])
    else:
        assert sorted(theirs) == sorted(full)


def test_equal_copies_share_the_work() -> None:
    full = model(64, 4, 2, 8, tied=True, experts=0)
    moves = plan(fsdp(full, 1, 2), unsharded({name: full[name].shape for name in full}))
    work = [sum(volume(m.source_box) for m in moves if m.sender == rank) for rank in (0, 1)]
    assert min(work) > 0.3 * sum(work)


NAMES = [*expected(model(64, 4, 2, 8, tied=True, experts=0), 0, 1, 2)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([*NAMES, "model.layers.0.mlp.router.weight"], r"has a tensor model\.layers\.0\.mlp\.rout"),
        (NAMES[:-1], r"has no place in the engine"),
        ([n.replace("qkv_proj", "my_qkv_proj") for n in NAMES], "such tensor; set engine.sglang"),
    ],
)
def test_a_name_too_many_or_too_few_is_refused(names: Sequence[str], said: str) -> None:
    full = model(64, 4, 2, 8, tied=True, experts=0)
    shapes = {name: tensor.shape for name, tensor in full.items()}
    with pytest.raises(EngineError, match=said):
        plan(fsdp(full, 2, 1), server_layout([names], shapes, kv_heads=2))


def test_what_no_rank_holds_is_named() -> None:
    full = model(64, 4, 2, 8, tied=True, experts=0)
    shapes = {name: tensor.shape for name, tensor in full.items()}
    senders = [{n: h for n, h in fsdp(full, 2, 1)[0].items() if "norm" in n or "embed" in n}]
    with pytest.raises(EngineError, match=r"embed_tokens\.weight\[32:64, 0:6\], which no rank"):
        plan(senders, unsharded({name: shapes[name] for name in senders[0]}))
