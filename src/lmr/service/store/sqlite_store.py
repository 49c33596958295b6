"""SqliteStore: the states of all streams in one SQLite file. ``sqlite3 FILE ".backup COPY"`` copies one in use."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import hold_lock
from lmr.service.store.schema import SQLITE_TABLES
from lmr.service.store.sql_store import Result, SqlStore, Statements
from lmr.service.store.stored_types import StoreError


class SqliteStore(SqlStore):
    """One SQLite file, which no other process opens meanwhile, or memory if ``path`` is None."""

    def __init__(
        self, path: str | os.PathLike[str] | None, identity: Mapping[str, str], *, adopt: bool = False
    ) -> None:
        super().__init__(repr(str(path)), identity, adopt=adopt)
        self.path = None if path is None else Path(os.path.realpath(path))
        self.durable = path is not None
        self._writing, self._reading = threading.RLock(), threading.RLock()
        with contextlib.ExitStack() as held:  # the lock of the file, and the connections
            if self.path is not None:
                held.enter_context(_lock(self.path))
                _refuse_other_names(self.path)
            try:
                self._writer = _connect(self.path, held)
                self._write(self._prepare_tables)
                self._reader = self._writer if self.path is None else _connect(self.path, held)
            except (sqlite3.Error, StoreError) as error:
                raise LmrError(f"Cannot use the store {self.title}: {error}; give another --store.") from error
            self._held = held.pop_all()
        if self.path is None:
            self._reading = self._writing
        self._file = self._find_file()

    def close(self) -> None:
        """Close the file."""
        with self._writing, self._reading:
            self._held.close()

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._reading, _explained():
            return self._reader.execute(query, values).fetchall()

    def _write(self, work: Callable[[Statements], Result]) -> Result:
        with self._writing, _explained():
            self._check_file()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                result = work(Statements(self._writer.cursor()))
                self._writer.execute("COMMIT")
                return result
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _prepare_tables(self, sql: Statements) -> None:
        tables = {name for (name,) in sql.run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self._prepare(sql, tables, SQLITE_TABLES)

    def _measure_bytes(self) -> int:
        if self.path is None:
            return 0
        paths = (self.path, self.path.with_name(self.path.name + "-wal"))
        with _explained():
            return sum(path.stat().st_size for path in paths if path.exists())

    _file: tuple[int, int] | None = None

    def _find_file(self) -> tuple[int, int] | None:
        """Return what tells the file from any other, also one of the same name; None if there is none."""
        try:
            found = None if self.path is None else self.path.stat()
        except FileNotFoundError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

    def _check_file(self) -> None:
        """Raise an error if the file was removed or replaced: SQLite would go on writing to what nobody can open."""
        if self._file is not None and self._find_file() != self._file:
            raise StoreError(f"the file {self.title} was removed or replaced; put it back, or start the service again")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except (sqlite3.Error, OSError) as error:
        raise StoreError(str(error)) from error


def _connect(path: Path | None, held: contextlib.ExitStack) -> sqlite3.Connection:
    """Return a connection whose commits survive a power cut, to memory if ``path`` is None."""
    where = ":memory:" if path is None else str(path)
    made = sqlite3.connect(where, timeout=10.0, isolation_level=None, check_same_thread=False)
    held.callback(made.close)
    made.text_factory = lambda content: content.decode("utf-8", "replace")  # a damaged text must not fail a whole list
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("PRAGMA synchronous=FULL")
    made.execute("PRAGMA journal_size_limit=67108864")
    return made


def _refuse_other_names(path: Path) -> None:
    """Refuse a file with hard links: each name has a lock and a log of its own, but the states are the same."""
    with contextlib.suppress(OSError):  # there is no file yet, or SQLite says what is wrong with it
        if path.stat().st_nlink > 1:
            raise LmrError(
                f"The store {str(path)!r} has several names (hard links), under which services could use it at once; "
                "remove the others, or give a copy of the file."
            )


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """Create the folder of the store, and return a context in which no other process opens it."""
    failed = f"Cannot use the folder {str(path.parent)!r}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"{failed}: {error.strerror}; give another --store.") from error
    message = f"Another process uses the store {str(path)!r}; end it, or give another --store."
    return hold_lock(path.with_name(f"{path.name}.lock"), message, failed=failed)
