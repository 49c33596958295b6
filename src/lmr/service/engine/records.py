"""Records of streams beside their states: counts, health, the last requests and the accuracy of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lmr.service.engine.requests import ImageResult
from lmr.service.engine.status import UNWATCHED, StreamStatus
from lmr.service.json_text import JsonText
from lmr.service.store.stored_types import StoredRecord

MEMORY = 256  # labelled images over which the running accuracy is averaged
RECENT = 64  # compared images over which the share of changed answers is averaged
DELETED = "deleted"  # the health of a deleted stream in the list of changes
DAMAGED = "damaged"  # the health of a stream whose stored record cannot be read


@dataclass(frozen=True)
class RunningShare:
    """An exponentially weighted share of images."""

    weight: float = 0.0
    hits: float = 0.0

    def add(self, hit: bool, memory: int = MEMORY) -> RunningShare:
        """Return the share with one more image."""
        keep = 1 - 1 / memory
        return RunningShare(keep * self.weight + 1, keep * self.hits + hit)

    @property
    def value(self) -> float | None:
        """Return the share, or None before the first image."""
        return self.hits / self.weight if self.weight else None


@dataclass(frozen=True)
class StreamRecord(JsonText):
    """One stream. ``seq`` counts its adapting requests, ``images`` the images in them."""

    stream: str
    seq: int = 0
    images: int = 0
    health: str = UNWATCHED
    adapts: bool = True
    signals: dict[str, Any] = field(default_factory=dict)
    # Class and count, most frequent first; the rest as None. Stores of earlier versions have numbers of classes.
    predicted: tuple[tuple[str | int | None, int], ...] = ()
    snapshots: tuple[int, ...] = ()
    labelled: int = 0
    right: RunningShare = field(default_factory=RunningShare)
    compared_right: RunningShare = field(default_factory=RunningShare)  # on images that the frozen model classified
    frozen_right: RunningShare = field(default_factory=RunningShare)  # of the frozen model, on the same images
    updated: float = 0.0
    change: int = 0
    adapting: str | None = None  # the phase of the method, for one that does not always adapt
    differs: RunningShare = field(default_factory=RunningShare)  # answers that differ from the frozen model's
    label: str | None = None  # of an image of the last request: the last that was compared, or the last one
    probability: float | None = None
    frozen_label: str | None = None  # of the same image; None if it was not compared
    known: float | None = None  # of the same image: the score that it belongs to one of the classes

    def store(self) -> StoredRecord:
        """Return the record in its stored form."""
        return StoredRecord(self.health, self.change, self.to_json())

    @classmethod
    def read(cls, stream: str, stored: StoredRecord | None) -> StreamRecord:
        """Return a stored record; one with the health "deleted" if there is none, "damaged" if it cannot be read."""
        if stored is None:
            return cls(stream, health=DELETED)
        try:
            found = cls.from_json(stored.content)
            if found.stream == stream:
                return found
        except ValueError:
            pass
        return cls(stream, health=DAMAGED, adapts=False)

    def describe(self, resident: bool, waiting: int) -> StreamStatus:
        """Return the status of the stream."""
        same: dict[str, Any] = {name: getattr(self, name) for name in _OF_STATUS} | self.measure_shares()
        return StreamStatus(**same, resident=resident, waiting=waiting)

    def measure_shares(self) -> dict[str, float | None]:
        """Return running accuracies and the share of changed answers under their names in ``StreamStatus``."""
        return {
            "accuracy": self.right.value,
            "compared_accuracy": self.compared_right.value,
            "frozen_accuracy": self.frozen_right.value,
            "compared_labelled": round(self.compared_right.weight),
            "changed": self.differs.value,
        }

    def list_shares(self) -> list[tuple[str, float]]:
        """Return the classes predicted most often with their shares of all images."""
        total = max(1, sum(count for _, count in self.predicted))
        return [(name, count / total) for name, count in self.predicted if count and isinstance(name, str)]


_OF_STATUS = [item.name for item in fields(StreamStatus) if item.name in StreamRecord.__dataclass_fields__]


@dataclass(frozen=True)
class StepNote(JsonText):
    """The stored summary of one request: its answers, those of the frozen model where known, and the signals."""

    seq: int
    count: int  # images that the client sent
    places: tuple[int, ...]  # positions of the answered images among them
    answers: tuple[tuple[str | None, float], ...]  # class and probability; None: of no class, or not finite (0.0)
    frozen: dict[int, str]  # position of the answer -> class of the frozen model, where known
    point: dict[str, Any]  # the signals after the request
    labels: tuple[str | None, ...] = ()  # true classes of the answers, None where unknown
    quiet: bool = False  # the method was quiet, so that it counted these answers


def note_answers(record: StreamRecord, answers: Sequence[ImageResult]) -> StreamRecord:
    """Return the record after the answers to a request."""
    given = [one for one in answers if one.error is None]
    compared = [one for one in given if one.frozen is not None]
    differs = record.differs
    for one in compared:
        if one.label is not None:
            differs = differs.add(one.label != one.frozen, RECENT)
    if not given:
        return record
    shown = (compared or given)[-1]
    record = replace(record, differs=differs, label=shown.label, frozen_label=shown.frozen)
    return replace(record, probability=shown.probability, known=shown.known)


def find_new_labels(note: StepNote, labels: Mapping[int, str]) -> tuple[list[str], list[str | None]]:
    """Return the classes of answers that had no label yet, and those that the method counted for them, or None."""
    new = {place: kind for place, kind in labels.items() if not note.labels or note.labels[place] is None}
    return list(new.values()), [note.answers[place][0] if note.quiet else None for place in new]


def add_labels(record: StreamRecord, note: StepNote, labels: Mapping[int, str]) -> tuple[StreamRecord, StepNote]:
    """Return the record and the note with true classes of some answers; an answer that is labelled already is kept."""
    known = list(note.labels or [None] * len(note.answers))
    right, compared, frozen = record.right, record.compared_right, record.frozen_right
    labelled = record.labelled
    for place, truth in labels.items():
        if known[place] is not None:
            continue
        known[place] = truth
        labelled += 1
        hit = note.answers[place][0] == truth
        right = right.add(hit)
        if place in note.frozen and note.answers[place][0] is not None:  # none of the classes: nothing to compare
            compared, frozen = compared.add(hit), frozen.add(note.frozen[place] == truth)
    after = replace(record, right=right, compared_right=compared, frozen_right=frozen, labelled=labelled)
    return after, replace(note, labels=tuple(known), point=note.point | after.measure_shares())
