"""A pool of processes for code that may hang, crash or hold the interpreter.

    parent (any event loop, any thread)         template              worker
    WorkerPool ── spawn n + socket ───────────> forks ──────────────> own session, rlimits
               ── call, on that socket ─────────────────────────────> runs fn(*args)
               <────────────────────── result ─────────────────────── waits for the next call
               ── kill n ─────────────────────> SIGKILL to the group
               <─ exit status, then end of file, when all of it is reaped

The template is a small single-threaded process: it forks workers in milliseconds, inherits neither
threads nor torch, and ends with everything below it when the parent ends, however that happens.
"""

from agentrl.workers.calls import CallFailed, QueueTimeout, WorkerDied, WorkerError, WorkerTimeout
from agentrl.workers.pool import WorkerPool

__all__ = [
    "CallFailed",
    "QueueTimeout",
    "WorkerDied",
    "WorkerError",
    "WorkerPool",
    "WorkerTimeout",
]
