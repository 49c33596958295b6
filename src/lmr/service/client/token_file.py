"""Files that hold the token of a service."""

from __future__ import annotations

import os
from pathlib import Path

from lmr.core.errors import LmrError


def read_token_file(path: str | os.PathLike[str]) -> str:
    """The token in a file, without the white space around it; LmrError if there is none."""
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise LmrError(f"Cannot read the token in {os.fspath(path)!r}: {error}.") from error
    if not token:
        raise LmrError(f"The token file {os.fspath(path)!r} is empty; write one with: openssl rand -hex 32")
    return token
