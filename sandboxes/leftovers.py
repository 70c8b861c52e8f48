"""The sandboxes of this machine, and removing those whose process is gone."""

from dataclasses import dataclass

from agentrl.sandboxes import workspace
from agentrl.sandboxes.docker import DockerEngine, engine
from agentrl.sandboxes.errors import SandboxUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One sandbox."""

    backend: str
    name: str
    pid: int
    """Of the process that it belongs to."""
    is_left_over: bool
    """True if that process is gone."""


def find_sandboxes() -> tuple[Found, ...]:
    """The sandboxes that exist, of all processes of this user."""
    found = [
        Found(backend="bwrap", name=path.name, pid=owner.pid, is_left_over=owner.is_gone)
        for owner, folder in workspace.owners()
        for path in workspace.sandboxes_in(folder)
    ]
    used = _find_docker_engine()
    if used is not None:
        found += [
            Found(backend="docker", name=name, pid=owner.pid, is_left_over=owner.is_gone)
            for owner, name in used.owned()
        ]
    return tuple(found)


def collect_leftovers() -> tuple[Found, ...]:
    """Remove what processes that are gone have left, and say what that was."""
    left = tuple(found for found in find_sandboxes() if found.is_left_over)
    workspace.reap()
    used = _find_docker_engine()
    if used is not None:
        used.reap()
    return left


def _find_docker_engine() -> DockerEngine | None:
    try:
        return engine(reap=False)
    except SandboxUnavailable:
        return None
