import io
from collections.abc import Iterator

import pytest

from agentrl.cli.display import PlainDisplay, make_display
from agentrl.cli.lines import Eta, format_duration, format_verified, sparkline, step_line
from agentrl.cli.live import LiveDisplay

METRICS = {
    "reward": 0.61,
    "success": 0.613,
    "length": 38.2,
    "gap_mean": 2.1e-6,
    "gap_max": 3e-5,
    "num_trained": 2000.0,
    "num_verified": 2000.0,
    "tokens_per_s": 9120.4,
    "step_s": 1.9,
    "rollout_s": 1.1,
    "train_s": 0.7,
    "publish_s": 0.01,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_step_is_one_line() -> None:
    assert step_line(12, 100, METRICS, 171) == (
        "step  12/100  reward  0.61  success  61%  len   38  gap 2.1e-06/3.0e-05"
        "  verified 100%  tok/s  9,120  1.9s (roll 1.1 train 0.7)  eta 2m51s"
    )
    supervised = {"loss": 0.25, "num_trained": 9, "num_verified": 9}
    assert step_line(1, 9, supervised, None) == "step 1/9  loss 0.250  verified 100%"
    more = {"reward": float("nan"), "eval/success": 0.9541, "invalid": 2.0}
    assert step_line(1, 9, more, None) == "step 1/9  held-out 95.4%  invalid 2"
    graded = {"eval/reward": 0.4512, "too_long": 1.0}
    assert step_line(1, 9, graded, None) == "step 1/9  held-out 0.45  too long 1"


def test_verified_says_100_percent_only_if_it_is_all() -> None:
    assert format_verified({"num_trained": 10**6, "num_verified": 10**6}) == "100%"
    assert format_verified({"num_trained": 10**6, "num_verified": 10**6 - 1}) == "99.9%"
    assert format_verified({"num_trained": 0, "num_verified": 0}) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (171, "2m51s"),
        (7260, "2h01m"),
        (90000, "1d01h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_sparkline_runs_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([9, 9, 0, 1], 2) == "▁█"
    assert sparkline([1, 1], 8) == "▅▅"
    assert sparkline([float("nan")], 8) == ""
    assert sparkline([0, 1], 8, unicode=False) == "_#"


def test_the_time_left_comes_from_the_last_steps() -> None:
    eta = Eta(total=10, now=100, window=2)
    assert eta.after(1, 110) == 90
    assert eta.after(2, 120) == 80
    assert eta.after(3, 121) == 5.5 * 7
    assert eta.after(10, 122) is None


def test_the_plain_display_writes_plain_lines() -> None:
    times: Iterator[float] = iter([0.0, 100.0, 102.0, 104.0])
    out = io.StringIO()
    display = PlainDisplay(3, out, clock=lambda: next(times))
    display.phase("warm start")
    display.phase("rollout")
    display.step(1, {"reward": 0.5})
    display.warn("no tool was called")
    display.note("saved")
    display.step(2, {"reward": 0.25})
    display.close()
    assert out.getvalue().splitlines() == [
        "warm start ...",
        "step 1/3  reward  0.50  eta 4s",
        "warning: no tool was called",
        "saved",
        "step 2/3  reward  0.25  eta 2s",
    ]


def test_the_live_display_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display("a", 3, io.StringIO()), PlainDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display("a", 3, Terminal()), PlainDisplay)
    monkeypatch.setenv("TERM", "xterm")
    display = make_display("a", 3, Terminal())
    assert isinstance(display, LiveDisplay)
    display.close()


def test_the_live_display_leaves_its_last_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    display = LiveDisplay("calculator-001", 2, out)
    display.phase("rollout")
    display.step(1, {**METRICS, "eval/success": 0.9})
    display.warn("no tool was called")
    display.step(2, METRICS)
    display.close()
    display.close()
    text = out.getvalue()
    for piece in (
        "calculator-001",
        "step 2/2",
        "done",
        "0.61",
        "held-out",
        "90.0%",
        "100% of trained tokens verified",
        "roll 1.1 train 0.7",
        "no tool was called",
    ):
        assert piece in text
