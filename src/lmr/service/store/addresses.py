"""Addresses of stores, as ``--store`` takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from lmr.core.errors import LmrError
from lmr.service.store.partitioned_store import PartitionedStore
from lmr.service.store.postgres_store import PostgresStore
from lmr.service.store.sqlite_store import SqliteStore

StateStore = SqliteStore | PostgresStore | PartitionedStore
NO_STORE = "none"  # states are kept in memory alone
_SQLITE, _POSTGRES = "sqlite:", ("postgresql://", "postgres://")


def open_store(address: str, identity: Mapping[str, str]) -> StateStore | None:
    """Return the store at ``address``; None for "none".

    Addresses are ``sqlite:PATH`` and ``postgresql://USER@HOST/DATABASE``; several of the latter, with commas between
    them, share the streams.
    """
    if address == NO_STORE:
        return None
    if address.startswith(_SQLITE) and address != _SQLITE:
        return SqliteStore(address.removeprefix(_SQLITE), identity)
    urls = _split(address)
    if not all(url.startswith(_POSTGRES) for url in urls):
        raise LmrError(
            "Expected a store as sqlite:FILE, postgresql://USER@HOST/DATABASE (several with commas between them) or "
            f"none, got {describe_store(address)!r}."
        )
    if len(urls) == 1:
        return PostgresStore(urls[0], identity)
    if len(set(urls)) < len(urls):
        raise LmrError(f"Expected {len(urls)} different databases in --store, but one is given twice.")
    with contextlib.ExitStack() as opened:
        stores = []
        for number, url in enumerate(urls, 1):
            place = {"place among databases": f"{number} of {len(urls)}"}
            stores.append(PostgresStore(url, {**identity, **place}))
            opened.callback(stores[-1].close)
        opened.pop_all()
    return PartitionedStore(stores)


def is_shared(address: str) -> bool:
    """Return True if several services may use the store at an address."""
    return address.startswith(_POSTGRES)


def describe_store(address: str) -> str:
    """Return an address for a message: without user and password."""
    if address.startswith(_SQLITE):
        return address.removeprefix(_SQLITE)
    return ", ".join(url.partition("?")[0].rpartition("@")[2] for url in _split(address))


def _split(address: str) -> list[str]:
    """Return the addresses in a list; the comma between two hosts of one address is none between addresses."""
    urls: list[str] = []
    for part in address.split(","):
        if urls and "://" not in part:
            urls[-1] += f",{part}"
        else:
            urls.append(part)
    return urls
