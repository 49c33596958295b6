"""The log: JSON lines with fields, and everything as it was afterwards."""

from __future__ import annotations

import io
import json
import logging

from lmr.core.log import LOGGER
from lmr.service.app.log import write_json_log


def test_lines_are_json() -> None:
    file = io.StringIO()
    before = LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    with write_json_log("info", file):
        logging.getLogger("lmr.service.requests").info("request", extra={"fields": {"status": 200, "path": "/\n"}})
        logging.getLogger("lmr").debug("not shown")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("uvicorn.error").exception("failed")
    assert (LOGGER.handlers, LOGGER.level, LOGGER.propagate) == before
    first, second = map(json.loads, file.getvalue().splitlines())
    assert (first["level"], first["message"], first["status"], first["path"]) == ("info", "request", 200, "/\n")
    assert first["time"].endswith("Z")
    assert "ValueError: broken" in second["exception"]
