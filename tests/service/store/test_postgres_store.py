"""PostgreSQL as a store: its faults are sentences, and what was acknowledged survives them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lab.load.postgres_server import MISSING, PostgresServer
from lmr import LmrError
from lmr.service.store import postgres_store
from lmr.service.store.postgres_store import PostgresStore
from lmr.service.store.stored_types import (
    KeptAnswer,
    StoredRecord,
    StoredState,
    StoreError,
    StreamChange,
    Transaction,
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
IDENTITY = {"model": "pocket"}


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.make_database()


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], PostgresStore]]:
    """Opens another connection to the same database at every call."""
    made: list[PostgresStore] = []
    yield lambda: made.append(PostgresStore(url, IDENTITY)) or made[-1]  # type: ignore[func-returns-value]
    for store in made:
        store.close()


def commit(store: PostgresStore, stream: str, text: str, key: str = "", events: tuple[str, ...] = ()) -> None:
    answers = [KeptAnswer(key, "d", text)] if key else []
    change = StreamChange(StoredRecord("ok", 1, text), StoredState(text.encode()), answers=answers)
    epochs = {stream: store.claim(stream).epoch}
    assert store.commit(Transaction({stream: change}, [(stream, one) for one in events], epochs)) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "postgresql://127.0.0.1:{free}/lmr",
            "Cannot reach the store 'lmr' at 127.0.0.1:{free}: .*[Rr]efused.*start the",
        ),
        ("postgresql://lmr:secret@127.0.0.1:{port}/missing", 'database "missing" does not exist.*correct --store'),
        ("postgresql://lmr@127.0.0.1:{port}/x?sslmode=nonsense", "Cannot reach .*sslmode"),
        ("postgresql://lmr@127.0.0.1:{port}/x?colour=red", "Cannot read the address of the store; expected one as"),
        ("postgresql://lmr@127.0.0.1:port/x", "Cannot re.*port"),
    ],
)
def test_wrong_addresses_are_sentences(postgres: PostgresServer, given: str, message: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        free = taken.getsockname()[1]
        with pytest.raises(LmrError, match=message.format(free=free)) as refused:
            PostgresStore(given.format(free=free, port=postgres.port), IDENTITY)
    assert "secret" not in str(refused.value)


def test_newer_and_foreign_databases_are_refused(postgres: PostgresServer, url: str) -> None:
    PostgresStore(url, IDENTITY).close()
    postgres.execute("UPDATE facts SET value = '99' WHERE name = 'version'", url)
    with pytest.raises(LmrError, match="format"):
        PostgresStore(url, IDENTITY)
    foreign = postgres.make_database()
    postgres.execute("CREATE TABLE things (x INT)", foreign)
    with pytest.raises(LmrError, match="--store"):
        PostgresStore(foreign, IDENTITY)


def test_engines_that_start_together_make_one_store(opened: Callable[[], PostgresStore]) -> None:
    threads = [threading.Thread(target=opened) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    commit(opened(), "a", "1")


def test_connections_that_were_cut_are_replaced(postgres: PostgresServer, opened: Callable[[], PostgresStore]) -> None:
    store = opened()
    commit(store, "a", "1")
    for number in range(2, 5):
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lmr serve'")
        commit(store, "a", str(number))
    assert store.claim("a").state == StoredState(b"4")


def test_server_that_crashes_costs_its_transactions_and_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "WAIT_SECONDS", 0.5)
    server = PostgresServer()
    try:
        store = PostgresStore(server.url, IDENTITY)
        commit(store, "a", "acknowledged", key="k")
        server.stop("immediate")
        with pytest.raises(StoreError):
            store.claim("a")
        server.start()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                store.probe(10)
                break
            except StoreError:
                time.sleep(0.2)
        assert store.claim("a").state == StoredState(b"acknowledged")
        assert store.read_answer("a", "k") == KeptAnswer("k", "d", "acknowledged")
        store.close()
    finally:
        server.remove()


def test_statement_that_hangs_ends(postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else holds the row of a stream, as a transaction does whose machine has gone away."""
    monkeypatch.setattr(postgres_store, "STATEMENT_SECONDS", 2.0)
    store = PostgresStore(url, IDENTITY)
    commit(store, "a", "1")
    with store._psycopg.connect(url) as other:
        other.execute("SELECT * FROM fences FOR UPDATE")
        with pytest.raises(StoreError, match=r"took longer than 2 s \(.*statement timeout"):
            store.claim("a")
    commit(store, "a", "2")
    store.close()


def test_pool_that_is_empty_is_a_sentence(opened: Callable[[], PostgresStore], monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    monkeypatch.setattr(postgres_store, "WAIT_SECONDS", 0.1)
    store._pool.timeout = 0.1
    taken = [store._pool.getconn(timeout=30) for _ in range(postgres_store.CONNECTIONS)]
    with pytest.raises(StoreError, match="connections"):
        store.claim("a")
    for connection in taken:
        store._pool.putconn(connection)
    commit(store, "a", "1")


def test_value_that_cannot_be_stored_is_no_error_of_the_store(opened: Callable[[], PostgresStore]) -> None:
    """It would degrade the engine, which serves all other streams."""
    store = opened()
    with pytest.raises(LmrError, match=r"cannot hold a value: .*NUL"):
        store.claim("\0x")
    commit(store, "a", "1")


def test_full_disk_is_a_sentence_and_leaves_nothing(
    opened: Callable[[], PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function in the database says what PostgreSQL says when a file cannot grow."""
    store = opened()
    commit(store, "a", "1")
    store._write(
        lambda sql: sql.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$"
        )
    )
    store._write(lambda sql: sql.run("CREATE TRIGGER full_disk BEFORE UPDATE ON states EXECUTE FUNCTION refuse()"))
    with pytest.raises(StoreError, match="No space left on device"):
        commit(store, "a", "2")
    assert store.read_record("a") == StoredRecord("ok", 1, "1")
    store._write(lambda sql: sql.run("DROP TRIGGER full_disk ON states"))
    commit(store, "a", "3")
