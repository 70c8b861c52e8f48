"""What a sandbox is asked for and what it answers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from agentrl.config import Config
from agentrl.config.anchor import PathText, Reference

Status: TypeAlias = Literal["exited", "timeout", "oom", "signalled"]
Kind: TypeAlias = Literal["file", "folder", "link", "other"]
Capability: TypeAlias = Literal[
    "contained", "memory", "processes", "cpu", "disk", "files", "sessions", "mounts", "overlay"
]
"""What a backend holds on this machine.

contained: own file system, processes, network and users; seccomp. memory, processes, cpu: of all
processes together. disk, files: bytes and inodes that can be written in all. sessions: processes
that live from call to call. mounts: folders of this machine to read. overlay: snapshot and reset
without copying the base.
"""

WORKSPACE: Final = "/workspace"
DEFAULT_IMAGE: Final = "agentrl-sandbox:latest"


class Limits(Config):
    """What one sandbox may use."""

    memory_bytes: int = Field(default=1 << 30, ge=1 << 24, description="memory of all processes")
    processes: int = Field(default=128, ge=8, description="processes and threads at once")
    cpus: float = Field(default=1.0, gt=0, description="processor time per second, in cores")
    disk_bytes: int = Field(default=256 << 20, ge=1 << 20, description="bytes written in all")
    files: int = Field(default=50_000, ge=64, description="files and folders written in all")
    open_files: int = Field(default=1024, ge=16, description="open files of one process")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds of one command by default")
    max_timeout_s: float = Field(default=600.0, gt=0, description="seconds of one command at most")
    output_bytes: int = Field(default=1 << 20, ge=64, description="kept of each output stream")
    read_bytes: int = Field(default=10 << 20, ge=64, description="largest file that is read")
    lifetime_s: int = Field(default=7200, ge=1, description="a container's life at most")

    def timeout(self, asked_s: float | None) -> float:
        """The seconds of a command that asks for so many, or for none."""
        return min(max(asked_s or self.timeout_s, 0.01), self.max_timeout_s)


class SandboxOptions(Config):
    """Which sandbox, and what is in it."""

    backend: Reference = Field(
        default="auto",
        description="auto, bwrap, docker, unsafe-local, fake, or a class as pkg.mod:Name",
    )
    image: str = Field(default=DEFAULT_IMAGE, description="of the backend docker")
    base: PathText | None = Field(default=None, description="a folder that /workspace begins as")
    mounts: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], Path] = Field(
        default_factory=dict[str, Path],
        description="folders of this machine that are read-only inside, by name",
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment of every command")
    limits: Limits = Field(default_factory=Limits)
    per_host: int = Field(
        default=0,
        ge=0,
        description="most in use at once by all processes of this user on this machine; "
        "0: as many as its memory and cores hold",
    )
    require: tuple[Capability, ...] = Field(
        default=(), description="capabilities without which the sandbox does not start"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, complete: the backend only has to run it."""

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = field(default_factory=dict[str, str])
    stdin: bytes = b""
    timeout_s: float = 60.0
    max_output: int = 1 << 20
    """Bytes kept of each stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What came of a command; partial output is kept in every case."""

    status: Status
    exit_code: int | None
    """128 and the signal's number for a killed process; None after a timeout."""
    stdout: bytes = b""
    stderr: bytes = b""
    """Head and tail, with a marker between them, if there was more than was kept."""
    stdout_total: int = 0
    stderr_total: int = 0
    """Bytes that there were."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    duration_s: float = 0.0
    """Of running alone, not of waiting for a place."""

    @property
    def ok(self) -> bool:
        """It ended by itself with 0."""
        return self.status == "exited" and self.exit_code == 0

    def text(self) -> str:
        """Both streams as text, for people and models."""
        return (self.stdout + self.stderr).decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a folder."""

    name: str
    kind: Kind
    size: int
