"""`CachePlan`: which episodes the engine's cache has room for, by a forecast of what each grows to.

    tokens
      ▲        ╭─ the peak: one has ended, the others are larger than now
      │   ╱╲ ╱│╲
      │  ╱  ╳  ╲     all that hold a part grow at the same pace, each to its forecast
      └─────────────▶

An episode is forecast to grow to the mean of those that have ended larger than it is. One more that
ends half way between what it is and the most that it may be counts among them: before anything is
known that is all there is. A cache is full if the peak of all that hold a part of it would be above
it (arXiv:2507.10150 does so within an engine). What a group shares, its prompt, is counted once.

An episode holds its part while the engine works for it, and during a tool call for as long as the
engine would need to compute a full cache. To hold a part of it for that long keeps as much of the
engine's time from others as it takes to compute that part again when the tool is done. An engine
evicts what was used least recently, so a part that is given up makes room by itself.
"""

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final

from agentrl.schedule.events import Owner

MOST_WITHOUT_BOUND: Final = 256
"""Episodes at once with an engine that does not say how much it holds."""
KEEP_S: Final = 10.0
"""So long an episode that waits for no engine holds its part, if the engine is not measured."""
_ENDED_KEPT: Final = 256
"""So many of the last episodes that ended tell what the next ones grow to."""


@dataclass(slots=True)
class _Holding:
    ticket: int
    forecast: float
    """The tokens that it grows to, by what was known at its last request."""
    tokens: int = 0
    largest: int = 0
    left_at: float = inf
    """Since when it waits for no engine; inf: it waits for one, or has sent nothing yet."""


class CachePlan:
    """Knows what of the cache each running episode holds; says whether another one fits."""

    def __init__(self) -> None:
        self.keep_s = KEEP_S
        """So long an episode that waits for no engine holds its part of the cache."""
        self._capacity: int | None = None
        self._longest = 0
        self._ended = deque[int](maxlen=_ENDED_KEPT)
        self._sizes: list[int] = []
        """Those of `_ended`, in order."""
        self._sums: list[int] = [0]
        """The sum of the first k sizes, for each k."""
        self._open: dict[tuple[int, int], _Holding] = {}
        self._total = 0.0
        """Of all forecasts."""
        self._prompts: dict[int, int] = {}
        """By ticket the tokens that the group's members share, once one has sent them."""

    def limit_tokens(self, capacity: int | None, longest: int, keep_s: float = KEEP_S) -> None:
        """The engine holds so many tokens, an episode has at most `longest`; None: no bound."""
        self._capacity, self._longest, self.keep_s = capacity, longest, keep_s

    def begin(self, ticket: int, member: int) -> None:
        """An episode runs."""
        self._open[ticket, member] = self._expect_next(ticket)
        self._total += self._open[ticket, member].forecast

    def note(self, ticket: int, member: int, tokens: int, owner: Owner, now: float) -> bool:
        """It has so many tokens, or as many as before with 0, and waits for `owner` from now on.

        True if there may be room for more: its group's prompt is known now, or it has ended.
        """
        holding = self._open[ticket, member]
        # Nothing is sampled once a verifier has it.
        holding.left_at = {"engine": inf, "verifier": -inf}.get(owner, now)
        if tokens:
            holding.tokens, holding.largest = tokens, max(tokens, holding.largest)
            self._total -= holding.forecast
            holding.forecast = self.forecast(tokens)
            self._total += holding.forecast
        is_news = tokens > 0 and ticket not in self._prompts
        if is_news:
            self._prompts[ticket] = tokens
        return is_news or owner == "verifier"

    def end(self, ticket: int, member: int, *, counts: bool) -> None:
        """It has ended; if it `counts`, others are taken to grow to what it had."""
        holding = self._open.pop((ticket, member))
        self._total -= holding.forecast
        if counts and holding.largest:
            if len(self._ended) == _ENDED_KEPT:
                self._sizes.remove(self._ended[0])
            self._ended.append(holding.largest)
            insort(self._sizes, holding.largest)
            self._sums = [0, *accumulate(self._sizes)]

    def forget_group(self, ticket: int) -> None:
        """What its members share is of no more use; those that run are dropped."""
        self._prompts.pop(ticket, None)
        for key in [key for key in self._open if key[0] == ticket]:
            self.end(*key, counts=False)

    def has_room(self, ticket: int, now: float) -> bool:
        """One more member of this group fits; one alone always does."""
        if self._capacity is None:
            return len(self._open) < MOST_WITHOUT_BOUND
        begins = self._expect_next(ticket)
        if not self._open or self._total + begins.forecast <= self._capacity:
            return True
        return self._find_peak(begins, now) <= self._capacity

    def next_release(self, now: float) -> float:
        """When the next episode gives up its part, if nothing happens before; inf: none does."""
        ends = (holding.left_at + self.keep_s for holding in self._open.values())
        return min((end for end in ends if end > now), default=inf)

    def forecast(self, tokens: int) -> float:
        """What an episode of so many tokens grows to."""
        smaller = bisect_right(self._sizes, tokens)
        larger = len(self._sizes) - smaller
        half_way = (tokens + max(tokens, self._longest)) / 2
        return (self._sums[-1] - self._sums[smaller] + half_way) / (larger + 1)

    def _expect_next(self, ticket: int) -> _Holding:
        """A member of this group that has sent nothing yet, with its prompt where that is known."""
        return _Holding(ticket, self.forecast(self._prompts.get(ticket, 0)))

    def _find_peak(self, begins: _Holding, now: float) -> float:
        """Most tokens at once if it begins, and all grow at the same pace to their forecasts.

        0 if it would be alone.
        """
        holds = [one for one in self._open.values() if now < one.left_at + self.keep_s]
        if not holds:
            return 0.0
        prompts = self._prompts
        grow = [
            (one.forecast - tokens, tokens, one.ticket)
            for one in (*holds, begins)
            for tokens in (one.tokens or prompts.get(one.ticket, 0),)
        ]
        grow.sort(reverse=True)  # when one of them has ended, those before it are still there
        held = peak = 0.0
        counted = set[int]()
        for num, (growth, tokens, ticket) in enumerate(grow, start=1):
            held += max(0, tokens - prompts.get(ticket, 0)) if ticket in counted else tokens
            counted.add(ticket)
            peak = max(peak, held + num * growth)
        return peak
