"""A chat template may loop without end: what tries one has a limit of time."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

from agentrl.errors import ConfigError

TEMPLATE_LIMIT_S = 60.0


@contextmanager
def template_time_limit() -> Generator[None]:
    """Raises ConfigError where the block takes longer; without limit outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return

    def stop(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    left = signal.setitimer(signal.ITIMER_REAL, TEMPLATE_LIMIT_S)
    try:
        yield
    except TimeoutError as error:
        raise ConfigError(
            f"the template did not finish within {TEMPLATE_LIMIT_S:g} s; look for a loop without "
            "end in it"
        ) from error
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)
