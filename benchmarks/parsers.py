"""Time of every tool-call format on adversarial output: linear, and not slow.

    python benchmarks/parsers.py [--formats pythonic,glm]

Each text is parsed at 0.25, 0.5 and 1 million characters. For the worst text of a format the table
shows the seconds of CPU at 1 million and the slope of log time over log length; 1 is linear. Exits
with 1 above `MAX_SLOPE`, for texts that take longer than `TOO_SHORT_S`, and above `MAX_S`.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.tokens import ToolFormat
from agentrl.tokens.formats import FORMATS
from agentrl.tokens.formats.scan import MAX_CHARS
from agentrl.types import ToolCall, ToolSchema

SIZES = (250_000, 500_000, 1_000_000)
MAX_SLOPE = 1.2
MAX_S = 1.0
"""CPU seconds for a million characters."""
TOO_SHORT_S = 0.1
"""Below it a slope is noise."""
TOOL = ToolSchema(name="typed", description="", parameters={"type": "object"})
PIECES = ("\n", "\\", '"', "'", '"""', "[", "{", "(", "[[]", "<", ";", "'',", "a=1,", '"a":')


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=",".join(FORMATS))
    names = parser.parse_args().formats.split(",")
    print("| format | texts | steepest slope | of the text | most seconds per 1 M | of the text |")
    print("|---|---|---|---|---|---|")
    return int(sum(measure(name) for name in names) > 0)


def measure(name: str) -> bool:
    """One format's row; true above a bar."""
    form = FORMATS[name]()
    times = {title: seconds(form, begin, piece) for title, begin, piece in floods(form)}
    slopes = {title: slope(some) for title, some in times.items()}
    slowest = max(times, key=lambda title: times[title][-1])
    steepest = max(slopes, key=lambda title: slopes[title])
    print(
        f"| {name} | {len(times)} | {slopes[steepest]:.2f} | {shown(steepest)} "
        f"| {times[slowest][-1]:.2f} | {shown(slowest)} |",
        flush=True,
    )
    return slopes[steepest] > MAX_SLOPE or times[slowest][-1] > MAX_S


def floods(form: ToolFormat) -> Iterator[tuple[str, str, str]]:
    """Title, beginning, and what is repeated behind it."""
    calls = [ToolCall(name="typed", arguments={"s": "x", "l": [1]}), ToolCall(name="typed")]
    whole = form.render_calls(calls)
    unclosed, cut = whole[: whole.index("x")], whole[:-1]
    quoted = whole[: whole.index("x")] + whole
    think = form.think[0] + unclosed + form.think[1]
    for title, piece in {
        "calls": whole, "calls cut off": cut, "calls that do not end": unclosed,
        "calls in calls": quoted, "calls in thinking": think, "end of thinking": form.think[1],
    }.items():  # fmt: skip
        yield title, "", piece
    for piece in dict.fromkeys((*PIECES, *form.markers)):
        yield f"{piece!r}", "", piece
        yield f"{piece!r} in a call", unclosed, piece


def seconds(form: ToolFormat, begin: str, piece: str) -> list[float]:
    """CPU seconds at each size, the best of three; of the largest only if that is quick."""
    texts = [begin + piece * ((size - len(begin)) // len(piece)) for size in SIZES]
    largest = parse_s(form, texts[-1])
    if largest < TOO_SHORT_S:
        return [largest]
    return [min(parse_s(form, text) for _ in range(3)) for text in texts]


def parse_s(form: ToolFormat, text: str) -> float:
    """CPU seconds of one parse."""
    started = time.thread_time()
    form.parse_text(text, [TOOL])
    return time.thread_time() - started


def slope(times: list[float]) -> float:
    """Of log time over log length; 0 if the times are too short.

    A call longer than its cap is given up and what follows is read, which the smallest text may
    not reach: then only the lengths behind the cap count.
    """
    if len(times) < len(SIZES):
        return 0.0
    if 8 * times[0] < times[1]:
        behind = np.array(SIZES[1:]) - MAX_CHARS
        return float(np.log(times[2] / times[1]) / np.log(behind[1] / behind[0]))
    return float(np.polyfit(np.log(SIZES), np.log(times), 1)[0])


def shown(title: str) -> str:
    """A title for a cell of the table."""
    return title.replace("|", "&#124;").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
