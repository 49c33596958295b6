"""Browser: what is known of streams, from the log of changes and the store; no stream is moved for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from lmr.service.engine.changes import ChangeLog
from lmr.service.engine.records import DELETED, StepNote, StreamRecord
from lmr.service.engine.step_types import UnknownStream
from lmr.service.engine.stream_types import StreamDetail, StreamStatus
from lmr.service.engine.telling import read_event
from lmr.service.store.store_interface import StateStore

LAST_ANSWERS = 20  # images, in the detail of a stream


class Browser:
    """Reads; ``changed`` guards the log. Of a store that others write too, the log does not know all."""

    def __init__(
        self,
        store: StateStore,
        names: Sequence[str],
        changed: threading.Condition,
        log: ChangeLog,
        describe: Callable[[StreamRecord], StreamStatus],
    ) -> None:
        self._store, self._names, self._changed, self._log, self._describe = store, names, changed, log, describe

    def find(self, stream: str) -> StreamDetail:
        """One stream, looked at closely."""
        with self._changed:
            record = None if self._store.shared else self._log.records.get(stream)
        if record is None:
            text = self._store.read_record(stream)
            record = None if text is None else StreamRecord.read(text)
        if record is None or record.health == DELETED:
            raise UnknownStream(f"There is no stream {stream!r}.")
        notes = [StepNote.read(text) for text in self._store.read_steps(stream)]
        answers = [
            {"seq": note.seq, "label": None if kind is None else self._names[kind], "probability": share}
            for note in notes
            for kind, share in note.answers
        ]
        return StreamDetail(
            status=self._describe(record),
            signals=record.signals,
            history=[note.point for note in notes],
            shares=record.list_shares(self._names),
            snapshots=list(record.snapshots),
            answers=answers[-LAST_ANSWERS:],
            events=[read_event(text) for text in self._store.read_events(stream)],
        )

    def list_streams(self, after: str, limit: int) -> list[StreamStatus]:
        """Streams in the order of their names. Those that are answered but not committed yet are among them."""
        found: list[StreamRecord] = []
        while True:
            stored = [StreamRecord.read(text) for text in self._store.list_records(after, limit)]
            end = stored[-1].stream if len(stored) == limit else None  # beyond it, the store may have more
            with self._changed:
                recent = {} if self._store.shared else self._log.records
                newer = {
                    stream: record
                    for stream, record in recent.items()
                    if stream > after and (end is None or stream <= end)
                }
            merged = {record.stream: record for record in stored} | newer
            found += [merged[stream] for stream in sorted(merged) if merged[stream].health != DELETED]
            if end is None or len(found) >= limit:  # a page that is not full is the last one
                return [self._describe(record) for record in found[:limit]]
            after = end
