"""What every way to bring weights to SGLang servers has in common: sessions and digests."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and safetensors are not typed)

import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch

from agentrl.engine.servers.control import Info, parse_version_numbers
from agentrl.engine.servers.weights import (
    SAMPLED_VALUES,
    UPDATE_S,
    Named,
    PublishedWeights,
    check_tensor_rows_arrived,
)
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights.layout import sources
from agentrl.errors import EngineError

_SESSIONS_SINCE = (0, 5, 21)
"""Since then weight updates go between begin and end."""

Target = tuple[Control, Info]


class CheckedWeights(PublishedWeights[Control]):
    """Weights of which a tensor is checked; a server has `timeout_s` for each bucket."""

    def __init__(self, *, timeout_s: float = UPDATE_S) -> None:
        super().__init__(timeout_s=timeout_s)
        self._listed: dict[str, frozenset[str]] = {}
        """By server: all that it has."""
        self._made_of: dict[str, Mapping[str, frozenset[str]]] = {}
        """By server: its tensors, and those that are sent of which each is made."""
        self._digests: dict[tuple[str, str], tuple[Sequence[bytes], Sequence[str]]] = {}
        """By server and tensor: ours and the server's, when it was last looked at."""

    async def confirm(self, control: Control, named: Named, version: int) -> None:
        """Compare a sampled tensor, then name the version."""
        name, tensor = named[version % len(named)]
        rows = max(1, SAMPLED_VALUES // max(1, tensor[0].numel()))
        theirs = await control.first_rows(name, rows)
        if theirs is None:
            await self._check_digests_change(control, named, version)
        else:
            check_tensor_rows_arrived(control, name, tensor[:rows], theirs)
        await control.set_version(version)

    async def _check_digests_change(self, control: Control, named: Named, version: int) -> None:
        """Digests must change where ours do: most models' servers tell no numbers.

        How a server hashes depends on its device, so one digest by itself says nothing; the first
        ones of all tensors are only kept. Later it looks at all vectors, one matrix, and one stack
        of experts.
        """
        ours = dict(named)
        made_of = self._made_of.get(control.url)
        if made_of is None:
            theirs = await control.checksums()
            shapes = {name: tuple(tensor.shape) for name, tensor in named}
            found = ((name, sources(name, shapes)) for name in theirs[0])
            self._listed[control.url] = frozenset(theirs[0])
            made_of = self._made_of[control.url] = {name: parts for name, parts in found if parts}
            chosen = list(made_of)
        else:
            by_rank: dict[int, list[str]] = defaultdict(list)
            for name, parts in made_of.items():
                by_rank[ours[min(parts)].ndim].append(name)
            chosen = [names[version % len(names)] for n, names in by_rank.items() if n > 1]
            chosen += by_rank[1]
            # The server skips what has one of these names in its own.
            rest = self._listed[control.url].difference(chosen)
            theirs = await control.checksums([n for n in rest if not any(n in c for c in chosen)])
        for name in chosen:
            made = (ours[part].detach().cpu().contiguous() for part in sorted(made_of[name]))
            raws: Any = [tensor.view(-1).view(torch.uint8).numpy() for tensor in made]
            digests = [hashlib.blake2b(raw, digest_size=16).digest() for raw in raws]
            now = (digests, [one[name] for one in theirs])
            before = self._digests.get((control.url, name), now)
            if (now[0] == before[0]) != (now[1] == before[1]):
                raise EngineError(
                    f"the server's {name} {'did not change' if now[1] == before[1] else 'changed'},"
                    f" but what was sent did{' not' if now[0] == before[0] else ''}; the server at "
                    f"{control.url} has not taken the weights"
                )
            self._digests[control.url, name] = now  # only now, as what failed is sent once more


@asynccontextmanager
async def update_session(control: Control, info: Info) -> AsyncGenerator[None]:
    """An update session where the server has them, closed also after a failure."""
    if parse_version_numbers(info.version) < _SESSIONS_SINCE:
        yield
        return
    try:
        await control.begin_update()
    except EngineError as error:
        if "already open" not in str(error):
            raise
        await control.end_update()  # of a trainer that died
        await control.begin_update()
    try:
        yield
    finally:
        await control.end_update()
