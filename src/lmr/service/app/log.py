"""The log as JSON lines on standard error: one object per line, with time, level, message and fields."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from lmr.core.log import LOGGER

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NAMES = (LOGGER.name, "uvicorn", "uvicorn.error")


class JsonLines(logging.Formatter):
    """A record as one line of JSON; ``extra={"fields": {...}}`` is added to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@contextmanager
def write_json_log(level: str = "info", file: TextIO | None = None) -> Iterator[None]:
    """Log in this form alone within the context."""
    handler = logging.StreamHandler(file or sys.stderr)
    handler.setFormatter(JsonLines())
    before = []
    for name in _NAMES:
        logger = logging.getLogger(name)
        before.append((logger, logger.handlers[:], logger.level, logger.propagate))
        logger.handlers, logger.propagate = [handler] if name != "uvicorn.error" else [], name == "uvicorn.error"
        logger.setLevel(LEVELS[level] if name == LOGGER.name else logging.WARNING)
    try:
        yield
    finally:
        for logger, handlers, old, propagates in before:
            logger.handlers, logger.propagate = handlers, propagates
            logger.setLevel(old)
