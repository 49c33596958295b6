"""OwnFolder: a temporary folder of one process, which others remove if that process was killed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = "lmr-worker-"


class OwnFolder:
    """A folder among the system's temporary ones. The lock beside it ends with the process, however that ends."""

    def __init__(self) -> None:
        remove_left_over()
        self.path = Path(tempfile.gettempdir()) / f"{PREFIX}{uuid.uuid4().hex}"
        self._lock = FileLock(_name_lock(self.path), thread_local=False)
        self._lock.acquire()  # before the folder exists, so that others never see it without its lock
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        _remove(self.path)
        self._lock.release()


def remove_left_over() -> None:
    """Remove the folders whose processes are gone: a driver that is killed takes its workers with it at once."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(Timeout, OSError), FileLock(lock, timeout=0):  # in use, or of another user
            _remove(lock.with_suffix(""))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _name_lock(folder).unlink(missing_ok=True)


def _name_lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
