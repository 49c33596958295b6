"""The tables of the store, the connection to it, and the checksums of its texts."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

VERSION = 2

# Every text that the engine reads back (record, watch, note, content of answers and events) is stored by ``seal``.
TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, health TEXT NOT NULL, change INTEGER NOT NULL,
    record TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS states (
    stream INTEGER PRIMARY KEY, watch TEXT NOT NULL, content BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS parts (
    stream INTEGER NOT NULL, name TEXT NOT NULL, content BLOB NOT NULL, UNIQUE (stream, name)
);
CREATE TABLE IF NOT EXISTS steps (
    stream INTEGER NOT NULL, seq INTEGER NOT NULL, note TEXT NOT NULL, PRIMARY KEY (stream, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL,
    content TEXT NOT NULL, UNIQUE (stream, key)
);
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, stream TEXT NOT NULL, content TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of_streams ON events (stream, number);
CREATE TABLE IF NOT EXISTS probes (content BLOB);
"""
OF_STREAM = ("states", "parts", "steps", "answers")  # tables with rows of a stream, beside "streams" itself


def connect(path: Path | None) -> sqlite3.Connection:
    """Return a connection whose commits survive a power cut, to memory if ``path`` is None."""
    where = ":memory:" if path is None else str(path)
    made = sqlite3.connect(where, timeout=10.0, isolation_level=None, check_same_thread=False)
    made.text_factory = lambda content: content.decode("utf-8", "replace")  # a damaged text must not fail a whole list
    try:
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("PRAGMA synchronous=FULL")
        made.execute("PRAGMA journal_size_limit=67108864")
    except sqlite3.Error:
        made.close()
        raise
    return made


def seal(text: str, content: bytes = b"") -> str:
    """Return a text as it is stored: behind a checksum of itself and of the ``content`` that belongs to it."""
    return f"{zlib.crc32(text.encode(), zlib.crc32(content)):08x}{text}"


def unseal(stored: object, content: object = b"") -> str | None:
    """Return the text of ``seal``; None if it or the content is damaged."""
    if not isinstance(stored, str) or not isinstance(content, bytes):
        return None
    text = stored[8:]
    return text if stored == seal(text, content) else None
