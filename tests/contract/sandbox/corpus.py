"""Every new cheat, by its suite and name."""

from collections.abc import Mapping
from typing import Final

from tests.contract.sandbox import false_equals, forged_passes, stolen_values
from tests.contract.sandbox.swe_cheats import Cheat

CORPUS: Final[Mapping[tuple[str, str], Cheat]] = {
    (suite, name): cheat
    for suite, found in (
        ("functions", forged_passes.OF_FUNCTIONS),
        ("cases", forged_passes.OF_CASES),
        ("functions", stolen_values.OF_FRAMES),
        ("functions", stolen_values.OF_DATA),
        ("functions", stolen_values.OF_FILES),
        ("functions", false_equals.EQUALS),
        ("cases", false_equals.OF_CASES),
        ("pairs", false_equals.OF_PAIRS),
    )
    for name, cheat in found.items()
}
