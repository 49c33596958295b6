"""Records of streams beside their states: counts, health, the last requests and the accuracy of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lmr.core.answer import Answer
from lmr.service.engine.camera import CameraHealth
from lmr.service.engine.status import StreamFacts, StreamStatus
from lmr.service.json_text import JsonText
from lmr.service.store.stored_types import StoredRecord

ESTIMATE = ("estimated_accuracy", "estimated_interval", "estimated_labels")  # fields of a stream with labels
MEMORY = 256  # labelled images over which the running accuracy is averaged
SURE = 20  # labelled images from which a running accuracy may be the best one
RECENT = 64  # images over which the share of changed answers and the probability are averaged
DELETED = "deleted"  # the health of a deleted stream in the list of changes
DAMAGED = "damaged"  # the health of a stream whose stored record cannot be read


@dataclass(frozen=True)
class RunningShare:
    """An exponentially weighted share of images."""

    weight: float = 0.0
    hits: float = 0.0
    count: int = 0  # images so far

    def add(self, hit: float, memory: int = MEMORY) -> RunningShare:
        """Return the share with one more image."""
        keep = 1 - 1 / memory
        return RunningShare(keep * self.weight + 1, keep * self.hits + hit, self.count + 1)

    def correct(self, before: bool, hit: bool, number: int, memory: int = MEMORY) -> RunningShare:
        """Return the share with another value of the image that was added as the ``number``-th."""
        return replace(self, hits=self.hits + (1 - 1 / memory) ** (self.count - number) * (hit - before))

    @property
    def value(self) -> float | None:
        """Return the share, or None before the first image."""
        return self.hits / self.weight if self.weight else None


@dataclass(frozen=True)
class StreamRecord(StreamFacts, JsonText):
    """One stream, as it is stored beside its state."""

    signals: dict[str, Any] = field(default_factory=dict)
    predicted: tuple[tuple[str | None, int], ...] = ()  # class and count, most frequent first; the rest as None
    snapshots: tuple[int, ...] = ()
    right: RunningShare = field(default_factory=RunningShare)
    compared_right: RunningShare = field(default_factory=RunningShare)  # on images that the frozen model classified
    frozen_right: RunningShare = field(default_factory=RunningShare)  # of the frozen model, on the same images
    differs: RunningShare = field(default_factory=RunningShare)  # answers that differ from the frozen model's
    sure: RunningShare = field(default_factory=RunningShare)  # the probabilities of answers
    seen: int = 0  # images since the state began to remember them for labels
    forgot: int = 0  # images up to this request cannot teach: the state is another one since
    picture: CameraHealth = field(default_factory=CameraHealth)

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
        same: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(StreamFacts)}
        return StreamStatus(
            **same,
            **self.measure_shares(),
            sureness=self.sure.value,
            camera=str(self.picture.state),
            camera_since=self.picture.since or None,
            resident=resident,
            waiting=waiting,
        )

    def measure_shares(self) -> dict[str, Any]:
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
        return [(name, count / total) for name, count in self.predicted if count and name is not None]


def describe_estimate(found: StreamFacts) -> dict[str, Any]:
    """Return the estimated accuracy of a stream with labels, for its answers; nothing without labels."""
    if not found.taught:
        return {}
    return {name: getattr(found, name) for name in ESTIMATE}


def describe_labels(record: StreamFacts) -> str:
    """Return the message of an event about the labels of a stream."""
    text = f"The stream has learnt {record.taught} label{'' if record.taught == 1 else 's'}"
    if record.estimated_interval is None:
        return f"{text}; none is of images like the present ones."
    shares = [f"{100 * share:.0f}" for share in (record.estimated_accuracy or 0.0, *record.estimated_interval)]
    return f"{text}; estimated {shares[0]} % right ({shares[1]} to {shares[2]})."


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
    first: int = -1  # number of the first answered image among those that a label can teach; -1: none
    taught: tuple[str | None, ...] = ()  # the labels that were learnt
    added: tuple[tuple[int, int], ...] = ()  # counts of both running accuracies when a label was added to them


def note_answers(record: StreamRecord, answers: Sequence[Answer]) -> StreamRecord:
    """Return the record after the answers to a request."""
    given = [one for one in answers if one.error is None]
    compared = [one for one in given if one.frozen is not None]
    differs = record.differs
    for one in compared:
        if one.label is not None:
            differs = differs.add(one.label != one.frozen, RECENT)
    sure = record.sure
    for one in given:
        if one.label is not None and one.probability is not None:
            sure = sure.add(one.probability, RECENT)
    if not given:
        return record
    shown = (compared or given)[-1]
    record = replace(record, differs=differs, sure=sure, label=shown.label, frozen_label=shown.frozen)
    return replace(record, probability=shown.probability, known=shown.known)


def note_domain(record: StreamRecord, time: float) -> StreamRecord:
    """Return the record with the time since which none of its labels is of the present domain."""
    holds = record.estimated_labels > 0 or record.taught == 0
    return replace(record, outdated=None if holds else record.outdated or time)


def find_counted(note: StepNote, place: int) -> str | None:
    """Return the class that a method which counts class shares has counted for an answer, if any."""
    taught = note.taught[place] if note.taught else None
    return taught or (note.answers[place][0] if note.quiet else None)


def add_labels(record: StreamRecord, note: StepNote, labels: Mapping[int, str]) -> tuple[StreamRecord, StepNote]:
    """Return the record and the note with true classes of some answers; another class of an answer replaces the first.

    They enter the running accuracies.
    """
    count = len(note.answers)
    known, added = list(note.labels or [None] * count), list(note.added or [(0, 0)] * count)
    right, compared, frozen = record.right, record.compared_right, record.frozen_right
    for place, truth in labels.items():
        before, answer = known[place], note.answers[place][0]
        known[place] = truth
        compares = place in note.frozen and answer is not None  # none of the classes: nothing to compare
        if before is None:
            right = right.add(answer == truth)
            if compares:
                compared, frozen = compared.add(answer == truth), frozen.add(note.frozen[place] == truth)
            added[place] = right.count, compared.count
        elif before != truth:
            one, both = added[place]
            right = right.correct(answer == before, answer == truth, one)
            if compares:
                compared = compared.correct(answer == before, answer == truth, both)
                frozen = frozen.correct(note.frozen[place] == before, note.frozen[place] == truth, both)
    labelled = record.labelled + sum(kind is not None for kind in known) - sum(kind is not None for kind in note.labels)
    best = record.best_accuracy
    if right.value is not None and right.weight >= SURE:
        best = right.value if best is None else max(best, right.value)
    after = replace(record, right=right, compared_right=compared, frozen_right=frozen, labelled=labelled)
    after = replace(after, best_accuracy=best)
    note = replace(note, labels=tuple(known), added=tuple(added))
    return after, replace(note, point=note.point | after.measure_shares())
