"""Addresses of stores: each is understood, or refused in a sentence without a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmr import LmrError
from lmr.service.store.addresses import describe_store, open_store
from lmr.service.store.sqlite_store import SqliteStore


def test_none_is_no_store_and_sqlite_is_a_file(tmp_path: Path) -> None:
    assert open_store("none", {}) is None
    path = tmp_path / "a,b@c" / "s.sqlite"
    store = open_store(f"sqlite:{path}", {})
    assert isinstance(store, SqliteStore)
    store.close()
    assert path.exists()
    assert describe_store(f"sqlite:{path}") == str(path)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("states", "states"),
        ("sqlite:", ""),
        ("mysql://u:secret@h/lmr", "mysql://h/lmr"),
    ],
)
def test_other_addresses_are_refused_without_their_password(address: str, shown: str) -> None:
    with pytest.raises(LmrError) as refused:
        open_store(address, {})
    assert str(refused.value) == (
        f"Expected a store as sqlite:FILE, postgresql://USER@HOST/DATABASE or none, got {shown!r}."
    )


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://lmr:secret@db/lmr", "postgresql://db/lmr"),
        ("postgresql:///lmr?user=u&password=secret", "postgresql:///lmr"),
        ("postgresql://u:secret@a:1,b:2/x?target_session_attrs=primary", "postgresql://a:1,b:2/x"),
        ("postgresql://u:sec?ret@db/lmr", "postgresql://db/lmr"),
        ("postgresql://u@db/lmr?password=sec@ret", "postgresql://db/lmr"),
    ],
)
def test_passwords_are_not_shown(address: str, shown: str) -> None:
    assert describe_store(address) == shown


@pytest.mark.parametrize(
    "address", ["u:se%zzcret@h/db", "u:se cret@h:1/db", "u:12/se@cret/db", "u@h/d?password=se=cret"]
)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(address: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LmrError, match="percent-encoded") as refused:
        open_store(f"postgresql://{address}", {})
    assert "cret" not in str(refused.value)
