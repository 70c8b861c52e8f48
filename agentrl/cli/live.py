"""The live picture of a run on a terminal."""

import math
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.cli.lines import Eta, format_duration, format_gap, phase_times, sparkline, summary
from agentrl.orchestration.observers import ROUTINE, Observer

_REFRESH_HZ = 4


class LiveDisplay(Observer):
    """Draws a few lines again and again; notes and warnings scroll away above them."""

    def __init__(self, name: str, total: int, stream: TextIO) -> None:
        self._name = name
        self._total = total
        self._step = 0
        self._phase = "starting"
        self._phase_began = time.monotonic()
        self._groups = ""
        self._metrics: Mapping[str, float] = {}
        self._rewards: list[float] = []
        self._success: list[float] = []
        self._eta = Eta(total, time.monotonic())
        self._began = False
        self._left: float | None = None
        self._asked = time.monotonic()
        self._console = Console(file=stream)
        self._live = Live(
            get_renderable=lambda: Group(self._render_progress(), self._make_live_metrics_grid()),
            console=self._console,
            refresh_per_second=_REFRESH_HZ,
        )
        self._live.start()

    def phase(self, name: str) -> None:
        """Show what is going on now."""
        if name in ROUTINE and not self._began:
            self._began = True
            self._eta = Eta(self._total, time.monotonic())
        self._phase, self._phase_began, self._groups = name, time.monotonic(), ""

    def groups(self, done: int, total: int) -> None:
        """Show how far the phase has come."""
        self._groups = f" {done}/{total}"

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the step's numbers."""
        self._step = step
        # The results of the last evaluation stay until the next one.
        kept = {key: value for key, value in self._metrics.items() if key.startswith("eval/")}
        self._metrics = {**kept, **metrics}
        self._rewards.append(metrics.get("reward", math.nan))
        self._success.append(metrics.get("success", math.nan))
        self._asked = time.monotonic()
        self._left = self._eta.after(step, self._asked)

    def note(self, text: str) -> None:
        """Print a line above the picture."""
        self._console.print(Text(text))

    def warn(self, text: str) -> None:
        """Print a line above the picture, in a colour."""
        self._console.print(Text(f"warning: {text}", style="yellow"))

    def close(self) -> None:
        """Leave the last picture standing; doing it twice is fine."""
        if self._live.is_started:
            self._phase = "done" if self._step >= self._total else "stopped"
            self._groups = ""
            self._phase_began = time.monotonic()
            self._live.stop()

    def _render_progress(self) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._total, completed=self._step, width=30)
        seconds = time.monotonic() - self._phase_began
        doing = (
            self._phase + self._groups + (f" {format_duration(seconds)}" if seconds >= 1 else "")
        )
        left = ""
        if self._left is not None and self._phase != "stopped":
            left = f"eta {format_duration(self._left - (time.monotonic() - self._asked))}"
        title = Text(self._name, style="bold")
        head.add_row(title, f"step {self._step}/{self._total}", bar, left, Text(doing, style="dim"))
        return head

    def _make_live_metrics_grid(self) -> RenderableType:
        shown, metrics = summary(self._metrics), self._metrics
        body = Table.grid(padding=(0, 2))
        width = max(10, min(60, self._console.width - 24))
        unicode = self._console.encoding.lower().startswith("utf")
        for label, values in (("reward", self._rewards), ("success", self._success)):
            if label in shown:
                line = sparkline(values, width, unicode=unicode)
                body.add_row(f"  {label}", shown[label], Text(line, style="green"))
        if "held-out" in shown:
            body.add_row("  held-out", shown["held-out"], "")
        if "loss" in shown:
            body.add_row("  loss", shown["loss"], "")
        if "len" in shown:
            body.add_row("  length", shown["len"], f"tokens, {metrics.get('turns', 0):.1f} turns")
        if format_gap(metrics):
            mean, highest = format_gap(metrics).split("/")
            verified = shown.get("verified", "?")
            text = f"mean, {highest} max; {verified} of trained tokens verified"
            body.add_row("  gap", mean, text)
        if "tok/s" in shown:
            seconds = f"{metrics.get('step_s', 0):.1f}s per step: {phase_times(metrics)}"
            body.add_row("  tokens/s", shown["tok/s"], seconds)
        if "invalid" in shown:
            body.add_row("  invalid", Text(shown["invalid"], style="yellow"), "episodes")
        return body
