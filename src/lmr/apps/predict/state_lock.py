"""The lock on a state file: two runs on one state would each save over what the other has learnt."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lmr.core.errors import LmrError
from lmr.core.files import acquire_lock


@contextlib.contextmanager
def hold_state(state: Path, message: str) -> Iterator[None]:
    """Keep other runs away from a state file within this context; LmrError with ``message`` if one is using it.

    The lock is the file ``.NAME.lock`` beside the state, because the state itself is replaced at every save. It is
    removed at the end, while it is still locked, so that a run leaves nothing behind; a run that had opened it before
    finds that it is gone and opens the next one. A lock file left by a killed run does no harm.
    """
    path = state.with_name(f".{state.name}.lock")
    file = _lock_file(path, state, message)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove open files
            path.unlink()
        file.close()


def _lock_file(path: Path, state: Path, message: str) -> IO[bytes]:
    """The lock file, open and locked, at a moment when it is still the one that others would open."""
    while True:
        try:
            file = open(path, "ab")  # noqa: SIM115 (the caller closes it)
        except OSError as error:
            raise LmrError(f"Cannot write {str(state)!r}: {error.strerror or error}.") from error
        if not acquire_lock(file):
            file.close()
            raise LmrError(message)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()
