"""The suggestion that follows an unknown name."""

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """`did you mean X?` if a name is close, else the list of what there is."""
    known = sorted(set(names))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:
        lowered = {other.lower(): other for other in known}
        close = [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=1)]
    if close:
        return f"did you mean {close[0]}?"
    return f"there is {', '.join(known)}" if known else "there is none"
