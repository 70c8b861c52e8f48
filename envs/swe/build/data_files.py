"""Values in the files that tests read: JSON, tables and lines of text beside a test file.

Which comparisons go by a value, and on which side, is known from wrong programs: there the expected
side shows the value, and the program's does not.
"""

import contextlib
import json
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from agentrl.envs.swe.build.spots import Spot
from agentrl.envs.swe.report import Saw
from agentrl.envs.swe.rewriting import Place
from agentrl.envs.swe.runner import UNKNOWN, literal

MOST_BYTES: Final = 1 << 16
MOST_FILES: Final = 100
_MOST_VALUES: Final = 200
_MOST_SPOTS: Final = 8
"""Of a test file: each is tried in a run of its own, for any test may read it."""
_JSON: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.])')
_BETWEEN: Final = r",;:=|<>{}\[\]\"'\t\r\n"
_CELL: Final = re.compile(rf"[^\s{_BETWEEN}](?:[^{_BETWEEN}]*[^\s{_BETWEEN}])?")


def is_data(file: str, tests: Sequence[str]) -> bool:
    """True for a file below the folder of a test file that is no code."""
    folders = {posixpath.dirname(test) for test in tests} - {""}
    return not file.endswith((".py", ".pyc")) and any(file.startswith(f"{f}/") for f in folders)


def find_data_spots(
    texts: Mapping[str, str], observed: Sequence[tuple[str, Saw]]
) -> Iterator[Spot]:
    """The values of data files that tests compare with what programs give.

    Args:
        texts: test files and data files by name, as they are.
        observed: what wrong programs gave, each with the test file.
    """
    for test, code in texts.items():
        saws = {saw for file, saw in observed if file == test}
        read = [file for file in texts if saws and is_data(file, [test])]
        found = [s for file in read for s in _find_spots(test, code, file, texts[file], saws)]
        # What is long stands in few places by chance.
        yield from sorted(found, key=lambda spot: -len(spot.written))[:_MOST_SPOTS]


def _find_spots(
    test: str, code: str, file: str, text: str, saws: Collection[Saw]
) -> Iterator[Spot]:
    values = [*_list_data_values(file, text)][:_MOST_VALUES]
    for place, written, value in values:
        wrong = {
            (saw.site, side) for saw in saws for side in (0, 1) if _is_side_wrong(saw, side, value)
        }
        sites = {site: side for site, side in wrong if (site, 1 - side) not in wrong}
        if sites:
            yield Spot(
                file=file,
                place=place,
                value=value,
                sites=sites,
                users=frozenset(re.findall(r"def (\w+)\(", code)),
                siblings=tuple(v for _, _, v in values if str(v).isdigit() is str(value).isdigit()),
                written=written,
                test_file=test,
            )


def _is_side_wrong(saw: Saw, side: int, value: object) -> bool:
    """True if a program gave something else on one side than a value on the other."""
    mine, other = saw.sides[side], saw.sides[1 - side]
    return UNKNOWN not in saw.sides and bare(value) in other and bare(value) not in mine


def bare(value: object) -> str:
    """A value as it stands in the text of one that it is a part of."""
    return literal(value).strip("'\"")


def _list_data_values(file: str, text: str) -> Iterator[tuple[Place, str, object]]:
    is_json = file.endswith(".json")
    for match in (_JSON if is_json else _CELL).finditer(text):
        if is_json and match[2]:  # a key
            continue
        line = text.count("\n", 0, match.start()) + 1
        place = (line, match.start(), line, match.end())
        with contextlib.suppress(ValueError):  # only called JSON
            yield place, match[0], json.loads(match[0]) if is_json else match[0]


def written_as(spot: Spot, value: object) -> str | None:
    """How another value stands in a spot's place; None if it cannot."""
    if not spot.written:
        return repr(value)
    if isinstance(value, float):
        text = f"{value:.{len(spot.written.partition('.')[2])}f}"
        return text if float(text) == value else None
    if spot.written != spot.value:
        return json.dumps(value, ensure_ascii=spot.written.isascii())
    return str(value) if _CELL.fullmatch(str(value)) else None
