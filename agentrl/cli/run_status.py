"""`agentrl run status RUN`: who waits for whom in a run, and since when."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field, FiniteFloat

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.config.describe import shown
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.whereabouts import BEAT_S, wait_line
from agentrl.run_dir import RunDirectory, read_lines
from agentrl.sandboxes.owner import Owner

_LATE_S: Final = 5 * BEAT_S
_MOST_LINES: Final = 20


class StatusOptions(JsonOption):
    """The options of `run status`."""

    runs_dir: str = Field(
        default=str(RunConfig.model_fields["runs_dir"].default),
        description="Folder that holds the runs.",
    )


class _WrittenWait(BaseModel):
    who: str
    owner: str
    seconds: FiniteFloat


class _WrittenStatus(BaseModel):
    """What `status.json` has."""

    process: str
    time: FiniteFloat
    step: int
    waits: list[_WrittenWait]
    num_waits: int


def _run_status(options: StatusOptions, arguments: Arguments) -> int:
    directory = RunDirectory.open(Path(options.runs_dir), arguments.positional[0])
    status = _read_status(directory)
    options.show(status, "\n".join(_render_status_lines(directory, status)))
    return 0


def _read_status(directory: RunDirectory) -> dict[str, Any]:
    """What the run wrote last, with the seconds since then and what that means."""
    try:
        text = directory.status.read_bytes()
    except FileNotFoundError:
        events = read_lines(directory.events)
        last = {"event": "nothing"} | (events[-1] if events else {})
        return {"state": "ended", "step": _read_last_step(directory), "last": last}
    except OSError as error:
        raise ConfigError(f"{directory.status}: could not be read ({error.strerror})") from error
    try:
        status = _WrittenStatus.model_validate_json(text)
        owner = Owner.parse(status.process)
        if owner is None:
            raise ValueError(status.process)
    except ValueError as error:  # pydantic's are too
        got = shown(text.decode(errors="replace").strip())
        raise ConfigError(
            f"{directory.status}: got {got}, expected what a run writes every second; delete it, "
            "and ask again"
        ) from error
    age = time.time() - status.time
    if owner.is_gone:
        state = "killed"
        status.step = max(status.step, _read_last_step(directory))  # it may be a second old
    else:
        state = "silent" if age > _LATE_S else "running"
    who = {"pid": owner.pid, "host": owner.host}
    return {"state": state, "age_s": round(age, 1), **who, **status.model_dump()}


def _read_last_step(directory: RunDirectory) -> int:
    steps = [line.get("step") for line in read_lines(directory.metrics)[-1:]]
    return next((step for step in steps if isinstance(step, int)), 0)


def _render_status_lines(directory: RunDirectory, status: Mapping[str, Any]) -> list[str]:
    name, step = directory.name, status["step"]
    if status["state"] == "ended":
        last = status["last"]
        why = f": {last['reason']}" if "reason" in last else ""
        return [
            f"{name} does not run; {step} steps are done, the last event is {last['event']}{why}"
        ]
    process = f"process {status['pid']} on {status['host']}"
    if status["state"] == "killed":
        return [
            f"{name} does not run: {process} was killed after step {step}; go on with: "
            f"agentrl train --resume {name}"
        ]
    heads = {
        "running": f"{name} runs ({process}); {step} steps are done",
        "silent": f"{name} has said nothing for {status['age_s']:.0f} s: {process} is stopped, "
        f"hangs, or its disk takes no more; {step} steps are done, and before that",
    }
    waits = status["waits"]
    lines = [
        f"  {wait_line(wait['who'], wait['owner'], wait['seconds'])}"
        for wait in waits[:_MOST_LINES]
    ]
    if (more := status["num_waits"] - len(lines)) > 0:
        lines.append(f"  and {more} more")
    return [heads[status["state"]], *(lines or ["  nobody waits"])]


COMMAND = Verb(
    summary="Say who waits for whom in a run, and since when.",
    examples=["agentrl run status last", "agentrl run status last --json"],
    options=StatusOptions,
    run=_run_status,
    takes=["RUN"],
)
