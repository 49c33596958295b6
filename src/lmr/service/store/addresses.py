"""Addresses of stores, as ``--store`` takes them."""

from __future__ import annotations

from collections.abc import Mapping

from lmr.core.errors import LmrError
from lmr.core.foreign_text import hide_password
from lmr.service.store.postgres_store import PostgresStore
from lmr.service.store.sqlite_store import SqliteStore

StateStore = SqliteStore | PostgresStore
NO_STORE = "none"  # states are kept in memory alone
_SQLITE, _POSTGRES = "sqlite:", ("postgresql://", "postgres://")


def open_store(address: str, identity: Mapping[str, str], *, adopt: bool = False) -> StateStore | None:
    """Return the store at ``address``; None for "none". With ``adopt`` it may be of other classes.

    Addresses are ``sqlite:PATH`` and ``postgresql://USER@HOST/DATABASE``.
    """
    if address == NO_STORE:
        return None
    if address.startswith(_SQLITE) and address != _SQLITE:
        return SqliteStore(address.removeprefix(_SQLITE), identity, adopt=adopt)
    if address.startswith(_POSTGRES):
        return PostgresStore(address, identity, adopt=adopt)
    raise LmrError(
        f"Expected a store as sqlite:FILE, postgresql://USER@HOST/DATABASE or none, got {describe_store(address)!r}."
    )


def describe_store(address: str) -> str:
    """Return an address for a message: without user and password."""
    if address.startswith(_SQLITE):
        return address.removeprefix(_SQLITE)
    return hide_password(address).partition("?")[0]
