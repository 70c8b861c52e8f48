"""Sandboxes that contain the code a policy writes.

    async with make_sandbox() as sandbox:
        result = await sandbox.exec("python3 solution.py", timeout_s=5)

`SyncSandbox` is the same for code without an event loop; `SandboxPool` shares few among many
episodes. docs/sandboxes.md says what each backend contains.
"""

from agentrl.sandboxes.base import Sandbox, Snapshot
from agentrl.sandboxes.choose import BACKENDS, check_backend, make_sandbox, survey
from agentrl.sandboxes.errors import (
    FileAccessError,
    FileTooLarge,
    PathEscape,
    SandboxClosed,
    SandboxDied,
    SandboxesBusy,
    SandboxStartError,
    SandboxUnavailable,
    UnsupportedLimit,
)
from agentrl.sandboxes.pool import SandboxPool, SandboxPools
from agentrl.sandboxes.probe import Probe
from agentrl.sandboxes.process import Process, Sink
from agentrl.sandboxes.session import Session
from agentrl.sandboxes.sync import SyncSandbox, SyncSession, run_sync
from agentrl.sandboxes.types import (
    Capability,
    Command,
    Entry,
    ExecResult,
    Limits,
    SandboxOptions,
)

__all__ = [
    "BACKENDS",
    "Capability",
    "Command",
    "Entry",
    "ExecResult",
    "FileAccessError",
    "FileTooLarge",
    "Limits",
    "PathEscape",
    "Probe",
    "Process",
    "Sandbox",
    "SandboxClosed",
    "SandboxDied",
    "SandboxOptions",
    "SandboxPool",
    "SandboxPools",
    "SandboxStartError",
    "SandboxUnavailable",
    "SandboxesBusy",
    "Session",
    "Sink",
    "Snapshot",
    "SyncSandbox",
    "SyncSession",
    "UnsupportedLimit",
    "check_backend",
    "make_sandbox",
    "run_sync",
    "survey",
]
