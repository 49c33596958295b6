"""StoreActor: owns one file of states. If its process dies, Ray starts it again, and it opens the file again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.service.store.sqlite_store import SqliteStore

ONE_FILE = "streams.sqlite"  # the file of a service on one machine, too
ANY_FILE = "streams*.sqlite"


class StoreActor:
    """One partition of the streams. Calls come from many replicas at once."""

    def __init__(self, path: str, identity: Mapping[str, str]) -> None:
        self._path, self._identity = Path(path), dict(identity)
        self._store: SqliteStore | None = None
        self._opening = threading.Lock()

    def call(self, name: str, *values: Any) -> tuple[Any, int]:
        """Call a method of the store; return its result and the size of the file."""
        store = self._open()
        return getattr(store, name)(*values), store.summarise().size

    def close(self) -> None:
        """Close the file."""
        with self._opening:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _open(self) -> SqliteStore:
        with self._opening:
            if self._store is None:
                self._store = SqliteStore(self._path, self._identity, shared=True)
            return self._store


def name_files(folder: Path, partitions: int) -> list[Path]:
    """Return the files of the partitions; LmrError if the folder has the files of another number.

    A stream belongs to the partition that its name and the number of partitions give, so that number stays.
    """
    numbers = range(partitions)
    names = [ONE_FILE] if partitions == 1 else [f"streams-{number}-of-{partitions}.sqlite" for number in numbers]
    found = {path.name for path in folder.glob(ANY_FILE)}
    if others := sorted(found - set(names)):
        there = 1 if others[0] == ONE_FILE else int(others[0].removesuffix(".sqlite").rpartition("-")[2])
        raise LmrError(
            f"The states in {str(folder)!r} are in {there} {'partition' if there == 1 else 'partitions'}, not in "
            f"{partitions}; start the service with --partitions {there}, or give another --store."
        )
    return [folder / name for name in names]
