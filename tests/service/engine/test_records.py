"""Records and notes survive storing, and labels are counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmr.service.engine.records import (
    RunningShare,
    StepNote,
    StreamRecord,
    add_labels,
    note_domain,
)

NOTE = StepNote(3, 5, (0, 1, 4), (("z", 0.9), (None, 0.0), ("y", 0.5)), {0: "z", 2: "x"}, {"seq": 3, "accuracy": None})


def test_storing_loses_nothing() -> None:
    record = StreamRecord(
        "ä", 4, 9, "watch", labelled=3, updated=5.5, change=77, label="y", estimated_interval=(0.5, 0.75),
        signals={"drift": 0.1, "entropy": None}, predicted=(("y", 5), (None, 2)), snapshots=(64, 128),
        right=RunningShare(2.0, 1.0), compared_right=RunningShare(1.0, 1.0),
    )  # fmt: skip
    stored = record.store()
    assert StreamRecord.from_json(stored.content) == record
    assert (stored.health, stored.change) == ("watch", 77)
    assert StepNote.from_json(NOTE.to_json()) == NOTE


def test_a_corrected_label_leaves_no_trace_of_the_first() -> None:
    """However many labels came since: all is as if the second had been the first."""
    other = replace(NOTE, seq=4)
    for k in range(3):
        record, note = add_labels(StreamRecord("a"), NOTE, {0: "z", 1: "y", 2: "y"})
        for _ in range(5):
            record, _ = add_labels(record, other, {0: "z", 2: "x"})
        record, note = add_labels(record, note, {k: "x"})
        expected, right = add_labels(StreamRecord("a"), NOTE, {0: "z", 1: "y", 2: "y"} | {k: "x"})
        for _ in range(5):
            expected, _ = add_labels(expected, other, {0: "z", 2: "x"})
        assert record.measure_shares() == pytest.approx(expected.measure_shares())
        assert (record.labelled, note.labels) == (13, right.labels)


def test_the_time_since_which_no_label_holds() -> None:
    record = note_domain(StreamRecord("a", taught=3, estimated_labels=3), 1.0)
    assert record.outdated is None
    record = note_domain(note_domain(replace(record, estimated_labels=0), 2.0), 3.0)
    assert record.outdated == 2.0
    assert note_domain(replace(record, estimated_labels=1), 4.0).outdated is None
    assert note_domain(StreamRecord("a"), 1.0).outdated is None
