"""Records and notes survive storing, and labels are counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmr.core.answer import Answer
from lmr.service.engine.records import (
    MEMORY,
    RunningShare,
    StepNote,
    StreamRecord,
    add_labels,
    find_counted,
    note_answers,
    note_domain,
)

NOTE = StepNote(3, 5, (0, 1, 4), (("z", 0.9), (None, 0.0), ("y", 0.5)), {0: "z", 2: "x"}, {"seq": 3, "accuracy": None})


def test_storing_loses_nothing() -> None:
    record = StreamRecord(
        "ä", 4, 9, "watch", True, {"drift": 0.1, "entropy": None}, (("y", 5), (None, 2)), (64, 128), 3,
        RunningShare(2.0, 1.0), RunningShare(1.0, 1.0), RunningShare(), 5.5, 77,
    )  # fmt: skip
    stored = record.store()
    assert StreamRecord.from_json(stored.content) == record
    assert (stored.health, stored.change) == ("watch", 77)
    assert StepNote.from_json(NOTE.to_json()) == NOTE


def test_shares_are_of_all_images() -> None:
    record = StreamRecord("a", predicted=(("y", 6), ("x", 2), ("z", 0), (None, 2)))
    assert record.list_shares() == [("y", 0.6), ("x", 0.2)]


def test_labels_are_counted_once_and_the_frozen_model_where_it_was_asked() -> None:
    record, note = add_labels(StreamRecord("a"), NOTE, {0: "z", 1: "y"})
    assert record.labelled == 2
    assert record.right.value == pytest.approx(0.5, abs=0.01)
    assert (record.compared_right.value, record.frozen_right.value) == (1.0, 1.0)
    assert note.labels == ("z", "y", None)
    again, note = add_labels(record, note, {0: "z", 1: "y", 2: "y"})
    assert again.labelled == 3
    assert again.right.value == pytest.approx(2 / 3, abs=0.01)
    assert again.compared_right.value == 1.0  # of the two images that the frozen model answered too
    assert again.frozen_right.value == pytest.approx(0.5, abs=0.01)
    assert note.labels == ("z", "y", "y")
    assert note.point.items() >= again.measure_shares().items()


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


def test_labels_replace_what_was_counted_in_quiet_times() -> None:
    assert [find_counted(NOTE, k) for k in range(3)] == [None] * 3
    quiet = replace(NOTE, quiet=True)
    assert [find_counted(quiet, k) for k in range(3)] == ["z", None, "y"]
    assert [find_counted(replace(quiet, taught=("y", None, None)), k) for k in range(3)] == ["y", None, "y"]


def test_the_time_since_which_no_label_holds() -> None:
    record = note_domain(StreamRecord("a", taught=3, estimated_labels=3), 1.0)
    assert record.outdated is None
    record = note_domain(note_domain(replace(record, estimated_labels=0), 2.0), 3.0)
    assert record.outdated == 2.0
    assert note_domain(replace(record, estimated_labels=1), 4.0).outdated is None
    assert note_domain(StreamRecord("a"), 1.0).outdated is None


def test_running_share_forgets() -> None:
    share = RunningShare()
    assert share.value is None
    for hit in [True] * 10 * MEMORY + [False] * MEMORY:
        share = share.add(hit)
    assert share.value == pytest.approx(0.368, abs=0.01)


def test_a_record_shows_an_image_that_was_compared_and_counts_changed_answers() -> None:
    same = Answer("dog", 0.9, top=(("dog", 0.9),), frozen="dog")
    other = Answer("dog", 0.8, top=(("dog", 0.8),), frozen="cat")
    plain, unreadable = Answer("ship", 0.7, top=(("ship", 0.7),)), Answer(error="not an image")
    record = note_answers(StreamRecord("cam"), [same, other, plain, unreadable])
    assert (record.label, record.probability, record.frozen_label) == ("dog", 0.8, "cat")
    assert record.differs.value == pytest.approx(0.5, abs=0.01)
    assert record.describe(resident=True, waiting=0).sureness == pytest.approx(0.8, abs=0.01)  # of all three
    record = note_answers(record, [plain])
    assert (record.label, record.frozen_label) == ("ship", None)
    assert note_answers(record, [unreadable]) == record
    status = record.describe(resident=True, waiting=0)
    assert (status.label, status.probability, status.changed) == ("ship", 0.7, record.differs.value)
