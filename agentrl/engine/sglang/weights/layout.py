"""How a server's tensor-parallel ranks hold a model, from the names that the live server gives.

Each rule is for one exact name of a module; a tensor that none fits is refused. What the rules say
is believed of a server only after its own loader has put the same numbers in the same places.
"""

from collections.abc import Mapping, Sequence

from agentrl.errors import EngineError
from agentrl.weights.experts import by_expert
from agentrl.weights.plan import Box, Held, Layout, Part, whole

_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_KV = ("k_proj", "v_proj")
_VOCABULARY = ("embed_tokens", "lm_head")
_BY_COLUMNS = ("o_proj", "down_proj")
_VOCABULARY_MULTIPLE = 64
"""Embeddings are padded to a multiple of so many rows."""
_TIED = {"lm_head.weight": "model.embed_tokens.weight"}
_EXPERTS: Mapping[str, str] = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}

Shapes = Mapping[str, tuple[int, ...]]


def server_layout(names: Sequence[Sequence[str]], shapes: Shapes, *, kv_heads: int) -> Layout:
    """What each rank holds, by its own names.

    Args:
        names: for each rank the tensors that it says it has.
        shapes: of the model's tensors, by their Hugging Face names; tied ones once.
        kv_heads: of the model; ranks share heads where there are fewer than ranks.

    Raises:
        EngineError: a name that is not known, or a tensor that cannot be split evenly.
    """
    size = len(names)
    return [
        {name: _locate_tensor_sources(name, rank, size, shapes, kv_heads) for name in mine}
        for rank, mine in enumerate(names)
    ]


def loader_layout(shapes: Shapes) -> Layout:
    """The tensors as the server's own loader reads them: whole, and each expert by itself."""
    held: dict[str, Held] = {}
    for source, shape in shapes.items():
        boxes = dict(by_expert(source, shape)) or {source: whole(shape)}
        for name, box in boxes.items():
            size = tuple(stop - start for start, stop in box)
            held[name] = Held(size, (Part(source, box, (0,) * len(box)),))
    return [held]


def sources(name: str, shapes: Shapes) -> frozenset[str]:
    """The model's tensors that a server's one is made of; none if its name is not known."""
    try:
        return frozenset(
            part.source for part in _locate_tensor_sources(name, 0, 1, shapes, 1).parts
        )
    except EngineError:
        return frozenset()


def _locate_tensor_sources(name: str, rank: int, size: int, shapes: Shapes, kv_heads: int) -> Held:
    *path, module, leaf = name.split(".")
    prefix = ".".join(path)
    if module in _FUSED:
        sources = [f"{prefix}.{part}.{leaf}" for part in _FUSED[module]]
        boxes: list[Box] = []
        for source, part in zip(sources, _FUSED[module], strict=True):
            rows, *others = _require_shape(name, source, shapes)
            # Ranks beyond the number of heads share one.
            parts = min(size, kv_heads) if part in _KV else size
            cut = _cut_rank_range(name, rows, rank * parts // size, parts)
            boxes.append((cut, *whole(others)))
        return _stack_boxes(sources, boxes, 0)
    if module == "experts" and leaf in _EXPERTS:
        source = f"{prefix}.experts.{_EXPERTS[leaf]}"
        return _locate_expert_share(name, source, _require_shape(name, source, shapes), rank, size)
    source = name if name in shapes else _TIED.get(name, name)
    shape = _require_shape(name, source, shapes)
    if module in _VOCABULARY:
        return _locate_vocabulary_share(source, shape, rank, size)
    if module in _BY_COLUMNS and len(shape) == 2:
        return _stack_boxes(
            [source], [((0, shape[0]), _cut_rank_range(name, shape[1], rank, size))], 1
        )
    return _stack_boxes([source], [whole(shape)], 0)


def _require_shape(name: str, source: str, shapes: Shapes) -> tuple[int, ...]:
    if source not in shapes:
        raise EngineError(
            f"the server has a tensor {name}, which would come from {source}, but the model has no "
            "such tensor; set engine.sglang.transport to tensor, where the server's loader decides"
        )
    return shapes[source]


def _cut_rank_range(name: str, length: int, rank: int, size: int) -> tuple[int, int]:
    if length % size:
        raise EngineError(
            f"the server's {name} would be {length} split by {size}, which leaves a rest; set "
            "engine.sglang.transport to tensor"
        )
    return rank * length // size, (rank + 1) * length // size


def _locate_vocabulary_share(source: str, shape: tuple[int, ...], rank: int, size: int) -> Held:
    padded = -(-shape[0] // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    start, stop = _cut_rank_range(source, padded, rank, size)
    last = min(stop, shape[0])
    parts = (Part(source, ((start, last), (0, shape[1])), (0, 0)),) if start < last else ()
    return Held((stop - start, shape[1]), parts)


def _locate_expert_share(
    name: str, source: str, shape: tuple[int, ...], rank: int, size: int
) -> Held:
    """All experts, of each a share of the inner dimension."""
    experts, rows, columns = shape
    if source.endswith(".down_proj"):
        return _stack_boxes(
            [source], [((0, experts), (0, rows), _cut_rank_range(name, columns, rank, size))], 0
        )
    start, stop = _cut_rank_range(name, rows // 2, rank, size)
    half = rows // 2
    boxes: list[Box] = [
        ((0, experts), (first + start, first + stop), (0, columns)) for first in (0, half)
    ]
    return _stack_boxes([source, source], boxes, 1)


def _stack_boxes(sources: Sequence[str], boxes: Sequence[Box], dim: int) -> Held:
    """Boxes one after the other along a dimension."""
    parts: list[Part] = []
    at = 0
    for source, box in zip(sources, boxes, strict=True):
        parts.append(Part(source, box, tuple(at if i == dim else 0 for i in range(len(box)))))
        at += box[dim][1] - box[dim][0] if box else 0
    sizes = [stop - start for start, stop in boxes[0]]
    if sizes:
        sizes[dim] = at
    return Held(tuple(sizes), tuple(parts))
