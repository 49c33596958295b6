"""PostgresStore: the states of all streams in a PostgreSQL database, which any number of engines share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.log import LOGGER
from lmr.service.store.schema import POSTGRES_TABLES
from lmr.service.store.sql_store import Result, SqlStore, Statements
from lmr.service.store.stored_types import StoreError

CONNECTIONS = 8  # of one engine
WAIT_SECONDS = 3.0  # for a connection
STATEMENT_SECONDS = 10.0  # for a statement, and between two of a transaction
ATTEMPTS = 3  # at a transaction whose connection was lost, or that met a deadlock
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
        self._check_connection()
        self._pool = pool.ConnectionPool(
            kwargs=self._options, min_size=1, max_size=CONNECTIONS, timeout=WAIT_SECONDS,
            reconnect_timeout=1.0, open=True,
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

    def _read(self, query: str, *values: Any) -> list[Any]:
        return self._write(lambda sql: sql.run(query, *values))

    def _write(self, work: Callable[[Statements], Result]) -> Result:
        errors = self._psycopg.errors
        final = (errors.QueryCanceled, errors.DiskFull, errors.OutOfMemory)
        with self._explained():
            for attempt in range(1, ATTEMPTS + 1):
                connection = self._pool.getconn()
                try:
                    with connection.transaction(), connection.cursor(binary=True) as cursor:
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
            "connect_timeout": 5, "tcp_user_timeout": millis, "keepalives_idle": 5, "keepalives_interval": 2,
            "keepalives_count": 3, "application_name": "lmr serve", **given,
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


def _name(options: Mapping[str, Any]) -> str:
    where = options.get("host") or options.get("hostaddr") or "localhost"
    port = f":{options['port']}" if "port" in options else ""
    return f"{options.get('dbname', '')!r} at {where}{port}"


def _explain(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
