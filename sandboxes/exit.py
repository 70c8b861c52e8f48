"""What is still open when the process ends is destroyed; SIGTERM ends it like `sys.exit` does.

SIGKILL cannot be heard: then the next process's reaper, or `agentrl sandbox gc`, cleans up.
"""

import atexit
import functools
import logging
import signal
import threading
from collections.abc import Callable

from agentrl.errors import AgentrlError
from agentrl.terminated import terminate

_log = logging.getLogger(__name__)
_open: dict[object, Callable[[], None]] = {}


def keep_until_exit(owner: object, destroy: Callable[[], None]) -> None:
    """Call `destroy` at exit, unless `owner` is forgotten before."""
    _install_exit_handlers()
    _open[owner] = destroy


def forget(owner: object) -> None:
    """It is destroyed already."""
    _open.pop(owner, None)


@functools.cache
def _install_exit_handlers() -> None:
    atexit.register(_destroy_open_sandboxes)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)


def _destroy_open_sandboxes() -> None:
    while _open:
        _, destroy = _open.popitem()
        try:
            destroy()
        except (AgentrlError, OSError) as error:
            _log.warning("a sandbox was left behind: %s", error)
