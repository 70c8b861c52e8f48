"""The numbers of a step as text: for the plain line and for the live picture."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=*#"
_TIMES = {"rollout_s": "roll", "train_s": "train", "publish_s": "pub"}


def step_line(step: int, total: int, metrics: Mapping[str, float], eta_s: float | None) -> str:
    """One line for one step; a metric that is not there leaves its column out."""
    parts = [f"step {step:>{len(str(total))}}/{total}"]
    for label, text in summary(metrics).items():
        parts.append(f"{label} {text:>{_WIDTHS.get(label, 0)}}")
    if "step_s" in metrics:
        times = phase_times(metrics)
        parts.append(f"{metrics['step_s']:.1f}s{f' ({times})' if times else ''}")
    if eta_s is not None:
        parts.append(f"eta {format_duration(eta_s)}")
    return "  ".join(parts)


_WIDTHS = {"reward": 5, "success": 4, "len": 4, "tok/s": 6}


def summary(metrics: Mapping[str, float]) -> dict[str, str]:
    """The metrics that a person watches, by label, in the order of the line."""
    shown = {
        "reward": _format_metric(metrics, "reward", "{:.2f}"),
        "success": _format_metric(metrics, "success", "{:.0%}"),
        "loss": "" if "reward" in metrics else _format_metric(metrics, "loss", "{:.3f}"),
        "len": _format_metric(metrics, "length", "{:.0f}"),
        "gap": format_gap(metrics),
        "verified": format_verified(metrics),
        "tok/s": _format_metric(metrics, "tokens_per_s", "{:,.0f}"),
        "held-out": _format_metric(metrics, "eval/success", "{:.1%}")
        or _format_metric(metrics, "eval/reward", "{:.2f}"),
        "invalid": _format_metric(metrics, "invalid", "{:.0f}") if metrics.get("invalid") else "",
        "too long": _format_metric(metrics, "too_long", "{:.0f}"),
        "no text": _format_metric(metrics, "no_text", "{:.0f}"),
    }
    return {label: text for label, text in shown.items() if text}


def format_gap(metrics: Mapping[str, float]) -> str:
    """The gap between the engine's and the trainer's logprobs: mean and maximum."""
    mean, highest = (_format_metric(metrics, key, "{:.1e}") for key in ("gap_mean", "gap_max"))
    return f"{mean}/{highest}" if mean and highest else ""


def format_verified(metrics: Mapping[str, float]) -> str:
    """The share of trained tokens whose record was verified; "100%" only if it is all of them."""
    trained, checked = metrics.get("num_trained", 0), metrics.get("num_verified", 0)
    if not trained:
        return ""
    return "100%" if checked == trained else f"{math.floor(1000 * checked / trained) / 10:.1f}%"


def phase_times(metrics: Mapping[str, float]) -> str:
    """Where a step's time went, such as "roll 1.1 train 0.7"; what took no time is left out."""
    times = ((label, metrics.get(key, 0.0)) for key, label in _TIMES.items())
    return " ".join(f"{label} {seconds:.1f}" for label, seconds in times if seconds >= 0.05)


def format_duration(seconds: float) -> str:
    """A time span in at most two units, such as "2m51s"."""
    whole = max(0, round(seconds))
    for unit, size, below, part in _UNITS:
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02}{below}"
    return f"{whole}s"


_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """The last `width` values as bars between their minimum and their maximum."""
    bars = _BARS if unicode else _ASCII_BARS
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return bars[len(bars) // 2] * len(shown)
    return "".join(bars[int((value - low) / span * (len(bars) - 1) + 0.5)] for value in shown)


class Eta:
    """The time that is left, from the last steps' own times."""

    def __init__(self, total: int, now: float, window: int = 20) -> None:
        self._total = total
        self._times = deque([now], maxlen=window + 1)

    def after(self, step: int, now: float) -> float | None:
        """Seconds until the last step, now that `step` is done."""
        self._times.append(now)
        spans = len(self._times) - 1
        return (now - self._times[0]) / spans * (self._total - step) if step < self._total else None


def _format_metric(metrics: Mapping[str, float], key: str, form: str) -> str:
    value = metrics.get(key)
    return form.format(value) if value is not None and math.isfinite(value) else ""
