"""What the service's store writes to the disk for one new state, measured with a small store of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lmr.service.store.store import Store
from lmr.service.store.stored_types import StoredRecord, StoredState, StreamChange, Transaction

STREAMS = 8  # in the measured commit
RECORD, NOTE = 600, 300  # characters of a stream's record and of the note of a request
_PAGE, _FRAME, _HEADER = 4096, 4096 + 24, 32  # of SQLite's pages, and of its write-ahead log


def measure_commit_bytes(state_bytes: int) -> float:
    """Bytes on the disk for one stream of a commit: pages go to the write-ahead log, and later to their place."""
    with tempfile.TemporaryDirectory(prefix="lmr-scale-") as folder:
        path = Path(folder) / "streams.sqlite"
        for seq in (1, 2):  # the second replaces what the first has written
            store = Store(path, {})
            try:
                store.commit(_make_commit(state_bytes, seq))
                log = path.with_name(path.name + "-wal").stat().st_size
            finally:
                store.close()  # empties the log
    pages = (log - _HEADER) / _FRAME
    return pages * (_FRAME + _PAGE) / STREAMS


def _make_commit(state_bytes: int, seq: int) -> Transaction:
    commit = Transaction()
    for number in range(STREAMS):
        state = StoredState(bytes([seq]) * state_bytes)
        record = StoredRecord("ok", seq, "r" * RECORD)
        commit.add(f"camera-{number}", StreamChange(record, state, {seq: "n" * NOTE}))
    return commit
