"""PostgresStore: the states of all streams in a PostgreSQL database, which any number of engines share."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.log import LOGGER
from lmr.service.store.schema import POSTGRES_TABLES, unseal
from lmr.service.store.sql_store import Result, SqlStore, Statements
from lmr.service.store.stored_types import StoredEvent, StoreError

if TYPE_CHECKING:
    import psycopg

CONNECTIONS = 8  # of one engine
WAIT_SECONDS = 3.0  # for a connection
STATEMENT_SECONDS = 10.0  # for a statement, and between two of a transaction
TRANSACTION_SECONDS = 15.0  # for a transaction, where the server ends no statement
ATTEMPTS = 3  # at a transaction whose connection was lost, or that met a deadlock
_CHANNEL = "lmr_events"
_MOST_NUMBERS = 500  # of events in a notification, which has a limited size
_PREPARE_LOCK = 0x6C6D72  # "lmr": engines that start together prepare the tables one after the other


class PostgresStore(SqlStore):
    """The database at a URL as libpq takes it. A transaction that waits too long or loses its connection fails.

    A server that is restarted costs the transactions of that moment, and one attempt more for each connection.
    """

    shared = True
    lock_rows = " FOR UPDATE"

    def __init__(self, url: str, identity: Mapping[str, str], *, adopt: bool = False) -> None:
        self._psycopg = require("psycopg", "postgres", "A store in PostgreSQL")
        pool = require("psycopg_pool", "postgres", "A store in PostgreSQL")
        self._options = self._read_url(url)
        super().__init__(_name(self._options), identity, adopt=adopt)
        self._listener: psycopg.Connection[Any] | None = None
        self._seen: int | None = None  # the number of the last event of another engine
        self._check_connection()
        self._pool = pool.ConnectionPool(
            kwargs=self._options, min_size=1, max_size=CONNECTIONS, timeout=WAIT_SECONDS,
            reconnect_timeout=1.0, open=True, name=f"lmr-{self.replica}",
        )  # fmt: skip
        try:
            self._write(self._prepare_tables)
        except (StoreError, LmrError) as error:
            self._pool.close()
            if isinstance(error, LmrError):
                raise
            raise LmrError(f"Cannot use the store {self.title}: {error}; give another --store.") from error

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self._stop_listening()

    def follow(self, seconds: float) -> list[StoredEvent]:
        """Return events that other engines committed; wait for them up to some seconds."""
        with self._explained():
            try:
                return self._follow(seconds)
            except self._psycopg.Error:
                self._stop_listening()
                raise

    def _follow(self, seconds: float) -> list[StoredEvent]:
        if self._listener is None:
            self._listener = self._psycopg.connect(**self._options, autocommit=True)
            self._listener.execute(f"LISTEN {_CHANNEL}")
            if self._seen is not None:  # of events during an interruption there was no notification
                return self._read_others("number > ?", self._seen)
            ((self._seen,),) = self._read("SELECT COALESCE(MAX(number), 0) FROM events")
        notes = [*self._listener.notifies(timeout=seconds, stop_after=1), *self._listener.notifies(timeout=0)]
        numbers = [int(number) for note in notes for number in note.payload.split()]
        return self._read_others("number = ANY(?)", numbers) if numbers else []

    def _read_others(self, which: str, value: object) -> list[StoredEvent]:
        query = f"SELECT number, stream, content, replica FROM events WHERE {which} AND replica <> ? ORDER BY number"
        rows = self._read(query, value, self.replica)
        self._seen = max([self._seen or 0, *(number for number, *_ in rows)])
        return [StoredEvent(stream, text, replica) for _, stream, sealed, replica in rows if (text := unseal(sealed))]

    def _announce(self, sql: Statements, numbers: list[int]) -> None:
        sql.run("SELECT pg_notify(?, ?)", _CHANNEL, " ".join(map(str, numbers[:_MOST_NUMBERS])))

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _read(self, query: str, *values: Any) -> list[Any]:
        return self._write(lambda sql: sql.run(query, *values))

    def _write(self, work: Callable[[Statements], Result]) -> Result:
        errors = self._psycopg.errors
        final = (errors.QueryCanceled, errors.DiskFull, errors.OutOfMemory)
        with self._explained():
            for attempt in range(1, ATTEMPTS + 1):
                connection = self._pool.getconn()
                try:
                    with _limited(connection), connection.transaction(), connection.cursor(binary=True) as cursor:
                        return work(Statements(cursor, "%s"))
                except self._psycopg.OperationalError as error:  # a lost connection, or a deadlock
                    if attempt == ATTEMPTS or isinstance(error, final):
                        raise
                    LOGGER.info("A transaction is tried again: %s", _explain(error))
                finally:
                    lost = connection.broken
                    self._pool.putconn(connection)
                    if lost:
                        self._pool.check()  # the others are lost, too, if the server was restarted
        raise AssertionError("unreachable")

    def _prepare_tables(self, sql: Statements) -> None:
        sql.run("SELECT pg_advisory_xact_lock(?)", _PREPARE_LOCK)
        found = sql.run("SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()")
        self._prepare(sql, {name for (name,) in found}, POSTGRES_TABLES)

    def _measure_bytes(self) -> int:
        return int(self._read("SELECT pg_database_size(current_database())")[0][0])

    def _read_url(self, url: str) -> dict[str, Any]:
        expected = (
            "Cannot read the address of the store; expected one as postgresql://USER@HOST:PORT/DATABASE, with special "
            "characters of a password percent-encoded"
        )
        try:
            given = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.Error as error:
            reason = re.sub('".*"', "...", _explain(error))  # what is quoted may be the password
            raise LmrError(f"{expected} ({reason}).") from None
        if any("@" in str(given.get(key, "")) for key in ("host", "port", "dbname")):  # a part of the password
            raise LmrError(f"{expected}.")
        millis = int(1000 * STATEMENT_SECONDS)
        limits = f"-c statement_timeout={millis} -c idle_in_transaction_session_timeout={millis}"
        return {
            "connect_timeout": 5, "tcp_user_timeout": millis, "application_name": "lmr serve", **given,
            "options": f"{given.get('options', '')} {limits}".strip(),
        }  # fmt: skip

    def _check_connection(self) -> None:
        """Raise an LmrError with the reason if the database cannot be reached; the pool would say that it waited."""
        try:
            self._psycopg.connect(**self._options).close()
        except self._psycopg.Error as error:
            raise LmrError(
                f"Cannot reach the store {self.title}: {_explain(error)}; start the database, or correct --store."
            ) from error

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise errors of the database as StoreError, but those of a value: others can be stored as before."""
        try:
            yield
        except self._psycopg.DataError as error:
            raise LmrError(f"The store {self.title} cannot hold a value: {_explain(error)}.") from error
        except self._psycopg.Error as error:
            reason = _explain(error)
            if isinstance(error, require("psycopg_pool", "postgres", "A store").PoolTimeout):
                reason = (
                    f"no connection to {self.title} in {WAIT_SECONDS:g} s: it is down, or all connections are in use"
                )
            elif isinstance(error, self._psycopg.errors.QueryCanceled):
                reason = f"{self.title} took longer than {STATEMENT_SECONDS:g} s ({reason})"
            raise StoreError(reason) from error


@contextlib.contextmanager
def _limited(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Break a connection whose server does not even end a statement that takes too long."""
    timer = threading.Timer(TRANSACTION_SECONDS, _cut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(connection: psycopg.Connection[Any]) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def _name(options: Mapping[str, Any]) -> str:
    where = options.get("host") or options.get("hostaddr") or "localhost"
    port = f":{options['port']}" if "port" in options else ""
    return f"{options.get('dbname', '')!r} at {where}{port}"


def _explain(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
