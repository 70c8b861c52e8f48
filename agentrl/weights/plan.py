"""Which rank sends which slice to which rank, computed from the layouts of both sides.

    trainer's rank 0: q_proj rows 0-4   ──┐         ┌─▶ engine's rank 0: qkv_proj
    trainer's rank 1: q_proj rows 4-8   ──┴─ moves ─┴─▶ engine's rank 1: qkv_proj

A layout says of each rank which tensors it holds, and which boxes of the model's tensors lie in
them. Here are numbers only: no tensor, no process, no name that means anything.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from agentrl.errors import EngineError

Box = tuple[tuple[int, int], ...]
"""From and up to, in each dimension."""
ALIGNMENT = 64
"""Bytes; where a tensor may begin in a bucket."""


@dataclass(frozen=True, slots=True)
class Part:
    """A box of one of the model's tensors, inside a tensor that a rank holds."""

    source: str
    """The model's tensor, by its Hugging Face name."""
    box: Box
    """What of it."""
    at: tuple[int, ...]
    """Where the box begins in the tensor that is held."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a rank; what no part covers is padding."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def is_padded(self) -> bool:
        """True if it holds more than its parts."""
        return sum(volume(part.box) for part in self.parts) < prod(self.shape)


Layout = Sequence[Mapping[str, Held]]
"""For each rank, what it holds, by the rank's own names."""


class Move(NamedTuple):
    """What one rank writes for another: boxes of equal size in what each of them holds.

    A tuple, since hundreds travel with each bucket.
    """

    sender: int
    receiver: int
    source: str
    source_box: Box
    target: str
    target_box: Box


class Place(NamedTuple):
    """Where in a bucket a receiver's tensor lies; a tuple as a move is."""

    offset: int
    """In bytes."""
    shape: tuple[int, ...]
    is_padded: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """Whole tensors of the receivers that travel together, and the moves that fill them."""

    places: Mapping[tuple[int, str], Place]
    """By receiver and name."""
    num_bytes: int
    moves: tuple[Move, ...]

    def planned_bytes(self, sender: int, value_bytes: int) -> int:
        """How much one rank has to write."""
        mine = (move for move in self.moves if move.sender == sender)
        return sum(volume(move.target_box) for move in mine) * value_bytes


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a bucket lies: memory that the processes of a host share, see `shared`."""

    manager: bytes
    name: bytes
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank wrote of its moves."""

    num_bytes: int
    sums: Mapping[str, float]
    """Of all that the rank holds of each tensor that it wrote from: not finite if one number is
    not, and other ones after an optimizer step."""


def volume(box: Box) -> int:
    """How many elements it has."""
    return prod(stop - start for start, stop in box)


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, size) for size in shape)


def unsharded(shapes: Mapping[str, Sequence[int]]) -> Layout:
    """One rank that holds every tensor as the model names it."""
    return [
        {
            name: Held(tuple(shape), (Part(name, whole(shape), (0,) * len(shape)),))
            for name, shape in shapes.items()
        }
    ]


def shapes_of(layout: Layout) -> Mapping[str, tuple[int, ...]]:
    """The full shape of each of the model's tensors that the ranks hold together."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in _list_parts_of_layout(layout):
        ends = tuple(stop for _, stop in part.box)
        shapes[part.source] = tuple(map(max, zip(shapes.get(part.source, ends), ends, strict=True)))
    return shapes


def plan(senders: Layout, receivers: Layout) -> Sequence[Move]:
    """The moves that fill every part of every receiver once; equal copies share the work.

    Raises EngineError if the senders lack what a receiver needs, or hold what none takes.
    """
    holders: dict[str, list[tuple[int, str, Part]]] = defaultdict(list)
    for rank, tensors in enumerate(senders):
        for name, held in tensors.items():
            for part in held.parts:
                holders[part.source].append((rank, name, part))
    work = [0] * len(senders)
    moves: list[Move] = []
    for receiver, tensors in enumerate(receivers):
        for target, held in tensors.items():
            for part in held.parts:
                for move in _plan_moves(receiver, target, part, holders.get(part.source, ()), work):
                    work[move.sender] += volume(move.source_box)
                    moves.append(move)
    _check_engine_takes_all_weights(senders, receivers)
    return moves


def buckets(
    receivers: Layout, moves: Sequence[Move], value_bytes: int, most_bytes: int
) -> Sequence[Bucket]:
    """The moves in buckets of at most so many bytes, or of one name; a name is never split."""
    by_target: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        by_target[move.target].append(move)
    made: list[Bucket] = []
    names: list[str] = []
    size = 0
    for name in dict.fromkeys(name for tensors in receivers for name in tensors):
        more = sum(
            _count_bytes(tensors[name], value_bytes) for tensors in receivers if name in tensors
        )
        if names and size + more > most_bytes:
            made.append(_make_bucket(receivers, names, by_target, value_bytes))
            names, size = [], 0
        names.append(name)
        size += more
    return [*made, _make_bucket(receivers, names, by_target, value_bytes)] if names else made


def _plan_moves(
    receiver: int,
    target: str,
    part: Part,
    holders: Sequence[tuple[int, str, Part]],
    work: Sequence[int],
) -> Iterator[Move]:
    """Moves for one part, from whoever holds it and has least to do."""
    missing = [part.box]
    for sender, source, held in sorted(holders, key=lambda holder: work[holder[0]]):
        still: list[Box] = []
        for box in missing:
            common = _intersect_boxes(box, held.box)
            if common is None:
                still.append(box)
                continue
            yield Move(
                sender,
                receiver,
                source,
                _convert_box_to_tensor_indices(common, held),
                target,
                _convert_box_to_tensor_indices(common, part),
            )
            still += _split_box_around_hole(box, common)
        missing = still
    if missing:
        raise EngineError(
            f"the engine's {target} needs {part.source}{_format_box_as_slices(missing[0])}, "
            "which no rank of the trainer holds; publish the model that the engine was started with"
        )


def _check_engine_takes_all_weights(senders: Layout, receivers: Layout) -> None:
    taken: dict[str, set[Box]] = defaultdict(set)
    for part in _list_parts_of_layout(receivers):
        taken[part.source].add(part.box)
    for source, shape in shapes_of(senders).items():
        left = [whole(shape)]
        for box in taken[source]:
            left = [rest for one in left for rest in _subtract_box(one, box)]
        if left:
            raise EngineError(
                f"the trainer's {source}{_format_box_as_slices(left[0])} has no place in "
                "the engine; publish the model that the engine was started with"
            )


def _list_parts_of_layout(layout: Layout) -> Iterator[Part]:
    for tensors in layout:
        for held in tensors.values():
            yield from held.parts


def _intersect_boxes(a: Box, b: Box) -> Box | None:
    """What two boxes share; None if nothing, as boxes of different dimensions do."""
    if len(a) != len(b):
        return None
    both = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return both if all(start < stop for start, stop in both) else None


def _subtract_box(box: Box, other: Box) -> Iterator[Box]:
    """What of a box is not in another."""
    common = _intersect_boxes(box, other)
    if common is None:
        yield box
    else:
        yield from _split_box_around_hole(box, common)


def _split_box_around_hole(box: Box, hole: Box) -> Iterator[Box]:
    """The boxes around a hole inside a box."""
    for i, ((start, stop), (first, last)) in enumerate(zip(box, hole, strict=True)):
        for side in ((start, first), (last, stop)):
            if side[0] < side[1]:
                yield (*hole[:i], side, *box[i + 1 :])


def _convert_box_to_tensor_indices(box: Box, part: Part) -> Box:
    """A box inside a part's box, counted as the tensor counts that holds the part."""
    return tuple(
        (start - low + at, stop - low + at)
        for (start, stop), (low, _), at in zip(box, part.box, part.at, strict=True)
    )


def _count_bytes(held: Held, value_bytes: int) -> int:
    return -(-prod(held.shape) * value_bytes // ALIGNMENT) * ALIGNMENT


def _make_bucket(
    receivers: Layout,
    names: Sequence[str],
    by_target: Mapping[str, Sequence[Move]],
    value_bytes: int,
) -> Bucket:
    places: dict[tuple[int, str], Place] = {}
    offset = 0
    for receiver, tensors in enumerate(receivers):
        for name in names:
            if name in tensors:
                held = tensors[name]
                places[receiver, name] = Place(offset, held.shape, held.is_padded)
                offset += _count_bytes(held, value_bytes)
    return Bucket(places, offset, tuple(move for name in names for move in by_target.get(name, ())))


def _format_box_as_slices(box: Box) -> str:
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"
