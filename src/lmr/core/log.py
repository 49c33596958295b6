"""The logger "lmr": for what happens and is not an answer. Silent unless the program that uses lmr sets up logging.

INFO says what is done (files read or fetched, a cache that cannot be written, answers that are not finite), WARNING
what was left out and should be looked at. Errors are exceptions and are not logged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger(__name__.partition(".")[0])  # the name of the package
LOGGER.addHandler(logging.NullHandler())


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print warnings on standard error within this context, as the commands do."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"{LOGGER.name}: %(message)s"))
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Let these loggers of other packages log errors only within this context."""
    levels = [(logger, logger.level) for logger in map(logging.getLogger, names)]
    for logger, _ in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)


@contextmanager
def hide_logs() -> Iterator[None]:
    """Log nothing from this thread within this context: for objects that are made only to check something."""
    thread = threading.get_ident()

    def keep(_: logging.LogRecord) -> bool:
        return threading.get_ident() != thread

    LOGGER.addFilter(keep)
    try:
        yield
    finally:
        LOGGER.removeFilter(keep)
