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
        ("mysql://u:secret@h/lmr", "h/lmr"),
        ("postgresql://u:secret@h/lmr,mysql://h/x", "h/lmr, mysql://h/x"),
    ],
)
def test_other_addresses_are_refused_without_their_password(address: str, shown: str) -> None:
    with pytest.raises(LmrError) as refused:
        open_store(address, {})
    assert str(refused.value) == (
        "Expected a store as sqlite:FILE, postgresql://USER@HOST/DATABASE (several with commas between them) or none, "
        f"got {shown!r}."
    )


def test_database_that_is_given_twice_is_refused() -> None:
    with pytest.raises(LmrError, match="Expected 2 different databases in --store, but one is given twice"):
        open_store("postgresql://a/lmr,postgresql://a/lmr", {})


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://lmr:secret@db/lmr", "db/lmr"),
        ("postgresql:///lmr?user=u&password=secret", "postgresql:///lmr"),
        ("postgresql://u:secret@a:1,b:2/x?target_session_attrs=primary", "a:1,b:2/x"),
        ("postgresql://u:p@a/x,postgresql://u:p@b/x", "a/x, b/x"),
    ],
)
def test_passwords_are_not_shown(address: str, shown: str) -> None:
    assert describe_store(address) == shown
