"""Why our renderer and parsers differ from others, case by case; `agreement.py` prints them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Disagreements that have one reason."""

    other: str
    """"renderers" or "sglang"."""
    subjects: tuple[str, ...] = ()
    """Templates or formats; all of them if there is none."""
    cases: tuple[str, ...]
    """What a case's title begins with."""
    right: Literal["ours", "theirs", "choice"]
    why: str

    def is_about(self, other: str, subject: str, case: str) -> bool:
        """True for a disagreement that this explains."""
        about = other == self.other and (not self.subjects or subject in self.subjects)
        return about and case.startswith(self.cases)


KNOWN: tuple[Known, ...] = ()
