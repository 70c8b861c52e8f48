"""What can go wrong with a call in another process; the caller decides whose fault it is."""

from agentrl.errors import AgentrlError


class WorkerError(AgentrlError):
    """Base of the errors of worker processes."""


class WorkerTimeout(WorkerError, TimeoutError):
    """The call ran out of time; its process is killed and reaped."""


class QueueTimeout(WorkerError, TimeoutError):
    """No worker became free in time; the call never ran."""


class WorkerDied(WorkerError):
    """The process ended by itself, was killed from outside, or its pool was closed."""


class CallFailed(WorkerError):
    """The call ended in a way that cannot be handed over as it is.

    An exception that does not survive pickling, `sys.exit`, a result that is too large or that
    cannot be pickled; the message says which.
    """
