"""Keep transformers quiet: what it has to say is said by us, in a sentence."""

# pyright: reportUnknownMemberType=false
# (parts of transformers are not typed)

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Generator[None]:
    """Keep transformers from writing progress bars and warnings."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
