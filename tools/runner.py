"""Runs one call of one tool, wherever that kind of tool runs, and makes its result a text.

| tool         | runs in            | at its timeout                                          |
|--------------|--------------------|---------------------------------------------------------|
| async        | the event loop     | is cancelled; the model sees it                         |
| sync         | the episode thread | goes on alone: the episode ends (`ToolHangs`)           |
| isolated     | a process          | is killed; the model sees it                            |

The text for the model is decoded and bounded, with the cut marked.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from agentrl.aio import OutOfTime, within
from agentrl.boundary import user_code
from agentrl.errors import EnvironmentFault, EpisodeError, ToolError
from agentrl.tools.declare import ToolSpec
from agentrl.workers import WorkerDied, WorkerError, WorkerPool, WorkerTimeout


class ToolTimeout(ToolError):
    """The call ran out of time and was stopped; the model sees it and the episode goes on."""

    recorded_as = "tool_timeout"


class ToolHangs(EpisodeError):
    """A sync tool outlived its timeout and could not be stopped: the episode ends."""


class SyncCaller(Protocol):
    """Runs sync code of an episode on the thread of that episode."""

    async def call_sync(
        self, what: str, function: Callable[[], object], timeout_s: float
    ) -> object:
        """The function's result; TimeoutError if it goes on alone."""
        ...


async def run_tool(
    spec: ToolSpec,
    owner: object,
    keywords: Mapping[str, object],
    *,
    timeout_s: float,
    caller: SyncCaller,
    pool: Callable[[], WorkerPool],
) -> object:
    """What the tool returns for keyword arguments that `spec.bind` made.

    Raises:
        ToolError: For the model: what the tool raised, or a ToolTimeout.
        ToolHangs: The thread is still in the tool.
        EnvironmentFault: The tool raised something else.
    """
    name, limit_s = spec.schema.name, spec.timeout_s or timeout_s
    if spec.isolated:
        return await run_isolated(
            pool(), name, spec.function, (None,) * spec.takes_self, keywords, limit_s
        )
    positional = (owner,) if spec.takes_self else ()
    if spec.is_async:
        try:
            return await within(limit_s, _await_tool(spec, positional, keywords))
        except OutOfTime:
            raise timed_out(limit_s) from None

    def call() -> object:
        with user_code(f"tool {name}", shows_tool_errors=True):
            return spec.function(*positional, **keywords)

    try:
        return await caller.call_sync(f"tool {name}", call, limit_s)
    except TimeoutError:
        raise ToolHangs(f"tool {name} did not end within {limit_s:g} s") from None


async def _await_tool(
    spec: ToolSpec, positional: tuple[object, ...], keywords: Mapping[str, object]
) -> object:
    with user_code(f"tool {spec.schema.name}", shows_tool_errors=True):
        return await spec.function(*positional, **keywords)


async def run_isolated(
    pool: WorkerPool,
    name: str,
    function: Callable[..., object],
    positional: tuple[object, ...],
    keywords: Mapping[str, object],
    timeout_s: float,
) -> object:
    """The function's result from a process of the pool; errors as in `run_tool`.

    A process that dies is the call's fault: nothing else runs in it.
    """
    try:
        with user_code(f"tool {name}", shows_tool_errors=True):
            return await pool.call(
                _call_in_worker_process, function, positional, dict(keywords), timeout_s=timeout_s
            )
    except WorkerTimeout:
        raise timed_out(timeout_s) from None
    except WorkerDied as error:
        raise ToolError(f"the process of tool {name} died: {error}") from error
    except WorkerError as error:
        raise EnvironmentFault(f"tool {name}: {error}") from error


def timed_out(timeout_s: float) -> ToolTimeout:
    """The error that a model sees after a timeout."""
    return ToolTimeout(f"timed out after {timeout_s:g} s")


def _call_in_worker_process(
    function: Callable[..., object], positional: tuple[object, ...], keywords: dict[str, object]
) -> object:
    return function(*positional, **keywords)


_BYTES_PER_TOKEN = 4
"""The estimate where no tokenizer is at hand."""
_MOST_CHARS_PER_TOKEN = 32
"""More text than this per token of the limit is cut away before it is tokenized."""

_MOST_TOKENS_PER_ASCII = 4
"""Fewer characters than the limit over this need not be tokenized to be known to fit."""


DONE = "Done."
"""What the model reads of a tool that returns nothing."""


class TextTokenizer(Protocol):
    """As much of a tokenizer as it takes to cut a text by tokens."""

    def encode(self, text: str, /, *, specials: bool) -> Sequence[int]:
        """The ids of a text; without `specials` no control token is recognised in it."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids."""
        ...


def result_text(tool: str, value: object) -> str:
    """A tool's result as text: a str as it is, nothing as `DONE`, everything else as JSON.

    Raises:
        EnvironmentFault: The value has no JSON form; the tool has a bug.
    """
    if value is None:
        return DONE
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvironmentFault(
                f"tool {tool} returned a {type(value).__name__} that is no JSON ({error}); "
                "return a str or plain JSON values"
            ) from error
    # A lone surrogate has no UTF-8 form, so no tokenizer takes it.
    return value.encode("utf-8", "replace").decode("utf-8")


def truncate_middle(text: str, limit: int, tokenizer: TextTokenizer | None = None) -> str:
    """`text` in at most `limit` tokens: head and tail stay, a marker says how much is missing.

    Without a tokenizer a token counts as four bytes of UTF-8. A limit too small for the marker
    leaves the head only.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}, expected at least one token")
    if text.isascii() and _MOST_TOKENS_PER_ASCII * len(text) <= limit:
        return text
    if tokenizer is None:
        tokenizer = _Bytes()
    left, right, missing = _cut_middle_by_characters(text, limit)
    ids = tokenizer.encode(left + right, specials=False)
    if not missing and len(ids) <= limit:
        return text
    if missing:
        ids_left, ids_right = (
            list(tokenizer.encode(left, specials=False)),
            list(tokenizer.encode(right, specials=False)),
        )
    else:
        half = len(ids) // 2
        ids_left, ids_right = list(ids[:half]), list(ids[half:])
    # Head, marker and tail in at most `limit` tokens.
    budget = limit - len(tokenizer.encode(_render_left_out_marker(len(text)), specials=False))
    while budget > 0:
        head = _strip_half_characters(tokenizer.decode(ids_left[: (budget + 1) // 2]))
        tail = _strip_half_characters(tokenizer.decode(ids_right[len(ids_right) - budget // 2 :]))
        joined = head + _render_left_out_marker(len(text) - len(head) - len(tail)) + tail
        excess = len(tokenizer.encode(joined, specials=False)) - limit
        if excess <= 0:
            return joined
        budget -= excess
    return _strip_half_characters(tokenizer.decode(ids_left[:limit]))


def _cut_middle_by_characters(text: str, limit: int) -> tuple[str, str, int]:
    """Head and tail that are worth tokenizing, and how many characters lie between them."""
    keep = limit * _MOST_CHARS_PER_TOKEN
    if len(text) <= 2 * keep:
        return text, "", 0
    return text[:keep], text[-keep:], len(text) - 2 * keep


def _render_left_out_marker(missing: int) -> str:
    return f"\n[... {missing} characters left out ...]\n"


def _strip_half_characters(piece: str) -> str:
    """Without the halves of characters that a cut between their bytes leaves."""
    return piece.strip("\ufffd")


class _Bytes:
    """Four bytes of UTF-8 are one token."""

    def encode(self, text: str, /, *, specials: bool) -> Sequence[int]:
        data = text.encode()
        return [
            int.from_bytes(b"\x01" + data[i : i + _BYTES_PER_TOKEN])
            for i in range(0, len(data), _BYTES_PER_TOKEN)
        ]

    def decode(self, ids: Sequence[int], /) -> str:
        data = b"".join(i.to_bytes(_BYTES_PER_TOKEN + 1).lstrip(b"\0")[1:] for i in ids)
        return data.decode(errors="replace")
