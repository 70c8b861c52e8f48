"""Why calls of tools failed: unknown tool, bad arguments, unreadable, cut off, or in the tool."""

from collections import Counter
from collections.abc import Sequence

from agentrl.types import CUT_OFF, CallErrorReason, Episode, EpisodeStop

_READ = frozenset(
    {CallErrorReason.UNKNOWN_TOOL, CallErrorReason.BAD_ARGUMENTS, CallErrorReason.TOO_MANY}
)
NEVER_RAN = frozenset({*map(str, _READ), "unreadable", CUT_OFF})
"""Kinds of calls that reached no tool; others are of tools that ran."""


def call_faults(episodes: Sequence[Episode]) -> Counter[str]:
    """Failed calls by kind.

    A call is "cut_off" where its turn ended at the limit of tokens, in it or behind it, and
    "unreadable" where it was written to its end and not in the format; other kinds are the reasons
    of the turns' records.
    """
    return Counter(
        _kind(error, last=turn is episode.turns[-1], stop=episode.stop)
        for episode in episodes
        for turn in episode.turns
        for error in turn.call_errors
    )


def _kind(error: str, *, last: bool, stop: EpisodeStop) -> str:
    if error not in set(CallErrorReason) - _READ:
        return error
    cut = last and error == CallErrorReason.UNCLOSED and stop in _LIMITS
    return CUT_OFF if cut else "unreadable"


_LIMITS = frozenset(
    {EpisodeStop.TURN_TOKENS, EpisodeStop.CONTEXT_TOKENS, EpisodeStop.EPISODE_TOKENS}
)
