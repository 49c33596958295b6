"""OwnFolder: a temporary folder of one process, which others remove if that process was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from lmr.core.files import acquire_lock

PREFIX = "lmr-worker-"
LOCK = ".lock"


class OwnFolder:
    """A folder among the system's temporary ones. Its lock ends with the process, however that ends."""

    def __init__(self) -> None:
        remove_left_over()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        fresh = self.path / f"{LOCK}.new"
        self._lock = fresh.open("wb")
        acquire_lock(self._lock)
        os.replace(fresh, self.path / LOCK)  # others look at this name alone, and there it is locked from the start

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_left_over() -> None:
    """Remove the folders whose processes are gone: a driver that is killed takes its workers with it at once."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:  # of another user, or removed in this moment
            if _is_free(file.fileno()):
                shutil.rmtree(lock.parent, ignore_errors=True)


def _is_free(descriptor: int) -> bool:
    """Return True if nobody holds the lock of an open file; False where that cannot be known."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
