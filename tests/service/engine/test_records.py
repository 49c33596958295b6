"""Records and notes survive storing, and labels are counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmr.service.engine.records import (
    MEMORY,
    RunningShare,
    StepNote,
    StreamRecord,
    add_labels,
    find_new_labels,
    note_answers,
)
from lmr.service.engine.requests import ImageResult

NOTE = StepNote(3, 5, (0, 1, 4), (("z", 0.9), (None, 0.0), ("y", 0.5)), {0: "z", 2: "x"}, {"seq": 3, "accuracy": None})


def test_storing_loses_nothing() -> None:
    record = StreamRecord(
        "ä", 4, 9, "watch", True, {"drift": 0.1, "canaries": None}, (("y", 5), (None, 2)), (64, 128), 3,
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
    again, note = add_labels(record, note, {0: "x", 1: "x", 2: "y"})
    assert again.labelled == 3
    assert again.right.value == pytest.approx(2 / 3, abs=0.01)
    assert again.compared_right.value == 1.0  # of the two images that the frozen model answered too
    assert again.frozen_right.value == pytest.approx(0.5, abs=0.01)
    assert note.labels == ("z", "y", "y")
    assert note.point.items() >= again.measure_shares().items()


def test_only_new_labels_replace_what_was_counted_in_quiet_times() -> None:
    assert find_new_labels(NOTE, {0: "y", 2: "x"}) == (["y", "x"], [None, None])
    quiet = replace(NOTE, quiet=True)
    assert find_new_labels(quiet, {0: "y", 1: "x", 2: "x"}) == (["y", "x", "x"], ["z", None, "y"])
    assert find_new_labels(replace(quiet, labels=("y", None, None)), {0: "z", 2: "x"}) == (["x"], ["y"])


def test_running_share_forgets() -> None:
    share = RunningShare()
    assert share.value is None
    for hit in [True] * 10 * MEMORY + [False] * MEMORY:
        share = share.add(hit)
    assert share.value == pytest.approx(0.368, abs=0.01)


def test_a_record_shows_an_image_that_was_compared_and_counts_changed_answers() -> None:
    same = ImageResult("dog", 0.9, (("dog", 0.9),), frozen="dog")
    other = ImageResult("dog", 0.8, (("dog", 0.8),), frozen="cat")
    plain, unreadable = ImageResult("ship", 0.7, (("ship", 0.7),)), ImageResult(error="not an image")
    record = note_answers(StreamRecord("cam"), [same, other, plain, unreadable])
    assert (record.label, record.probability, record.frozen_label) == ("dog", 0.8, "cat")
    assert record.differs.value == pytest.approx(0.5, abs=0.01)
    record = note_answers(record, [plain])
    assert (record.label, record.frozen_label) == ("ship", None)
    assert note_answers(record, [unreadable]) == record
    status = record.describe(resident=True, waiting=0)
    assert (status.label, status.probability, status.changed) == ("ship", 0.7, record.differs.value)
