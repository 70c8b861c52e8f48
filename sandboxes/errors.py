"""What goes wrong with sandboxes: the world's faults, and a file that a policy cannot have.

    SandboxError (agentrl.errors: the episode is Invalid, never scored)
    ├── SandboxUnavailable   no daemon, program or image
    │   └── SandboxesBusy    none was free in time: overload is nobody's wrong answer
    ├── SandboxStartError    it is there, but this sandbox did not come up
    ├── SandboxDied          it was alive and is not any more
    ├── SandboxClosed        it was used after `close`
    └── UnsupportedLimit     a limit or feature was asked for that the backend cannot hold

A command's non-zero exit, timeout or lack of memory is a result. What a policy asks of a file that
cannot be had is a `FileAccessError`, which tools show to the model.
"""

from agentrl.errors import SandboxError, ToolError


class SandboxUnavailable(SandboxError):
    """The backend does not work on this machine."""


class SandboxesBusy(SandboxUnavailable):
    """No sandbox was free within the time that was given for waiting."""


class SandboxStartError(SandboxError):
    """The sandbox did not come up; nothing of it is left."""


class SandboxDied(SandboxError):
    """The sandbox is gone, so what ran in it has no result."""


class SandboxClosed(SandboxError):
    """The sandbox was closed before."""


class UnsupportedLimit(SandboxError):
    """The backend cannot hold a limit, or has no such feature."""


class FileAccessError(ToolError):
    """A file in the sandbox cannot be read or written; the message is for the model."""


class FileTooLarge(FileAccessError):
    """The file is longer than the caller takes."""


class PathEscape(FileAccessError):
    """An archive from the sandbox has a member that would lie outside of its folder."""
