"""Bookkeeper: writes down what happened to a stream, in its record, in notes of its requests and in events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lmr.service.engine.records import StepNote, StreamRecord
from lmr.service.engine.stream_types import EventKind, ServiceEvent
from lmr.service.engine.telling import store_event
from lmr.service.engine.working.compute import Condition
from lmr.service.engine.working.residents import Resident
from lmr.service.engine.working.served import Served, Situation
from lmr.service.store.store import MOST_STEPS
from lmr.service.store.store_interface import StateStore

FEW_NOTES = 8  # kept beside those in the store, where every batch is committed


class Bookkeeper:
    """``unpacked`` are the streams whose states have changed and were not packed since."""

    def __init__(self, store: StateStore, take_number: Callable[[], int], *, at_once: bool) -> None:
        self.unpacked: set[str] = set()
        self.take_number = take_number
        self._store, self._most_notes = store, FEW_NOTES if at_once else MOST_STEPS

    def note_change(
        self, resident: Resident, record: StreamRecord, condition: Condition, served: Served, situation: Situation
    ) -> StreamRecord:
        """Give a resident whose state has changed its new record."""
        before = resident.record.health if resident.exists else ""
        record = replace(record, **vars(condition), updated=situation.wall, change=self.take_number())
        resident.record, resident.exists = record, True
        self.unpacked.add(record.stream)
        served.records.append((before, record))
        return record

    def find_note(self, resident: Resident, seq: int) -> StepNote | None:
        """What is kept of a request."""
        if seq in resident.notes:
            return resident.notes[seq]
        text = self._store.read_step(resident.record.stream, seq)
        return None if text is None else StepNote.read(text)

    def keep_notes(self, resident: Resident, notes: dict[int, StepNote]) -> None:
        """Keep notes that are not in the store yet."""
        resident.notes |= notes
        for seq in sorted(resident.notes)[: -self._most_notes]:
            del resident.notes[seq]

    def add_event(
        self,
        served: Served,
        situation: Situation,
        stream: str,
        kind: EventKind,
        change: tuple[str, str],
        words: str,
        signals: dict[str, Any],
    ) -> None:
        """Add an event; ``change`` is the health before and after."""
        event = ServiceEvent(self.take_number(), situation.wall, stream, kind, *change, words, signals)
        served.events.append(event)
        served.transaction.events.append(store_event(event))
