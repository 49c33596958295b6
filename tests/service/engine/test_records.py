"""Records and notes survive storing, and labels are counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmr.service.engine.records import MEMORY, RunningShare, StepNote, StreamRecord, add_labels, find_new_labels

NOTE = StepNote(3, 5, (0, 1, 4), ((2, 0.9), (None, 0.0), (1, 0.5)), {0: 2, 2: 0}, {"seq": 3, "accuracy": None})


def test_storing_loses_nothing() -> None:
    record = StreamRecord(
        "ä", 4, 9, "watch", True, {"drift": 0.1, "canaries": None}, ((1, 5), (-1, 2)), (64, 128), 3,
        RunningShare(2.0, 1.0), RunningShare(1.0, 1.0), RunningShare(), 5.5, 77,
    )  # fmt: skip
    stored = record.store()
    assert StreamRecord.from_json(stored.content) == record
    assert (stored.health, stored.change) == ("watch", 77)
    assert StepNote.from_json(NOTE.to_json()) == NOTE


def test_shares_are_of_all_images() -> None:
    record = StreamRecord("a", predicted=((1, 6), (0, 2), (2, 0), (-1, 2)))
    assert record.list_shares(["x", "y", "z"]) == [("y", 0.6), ("x", 0.2)]


def test_labels_are_counted_once_and_the_frozen_model_where_it_was_asked() -> None:
    record, note = add_labels(StreamRecord("a"), NOTE, {0: 2, 1: 1})
    assert record.labelled == 2
    assert record.right.value == pytest.approx(0.5, abs=0.01)
    assert (record.compared_right.value, record.frozen_right.value) == (1.0, 1.0)
    assert note.labels == (2, 1, None)
    again, note = add_labels(record, note, {0: 0, 1: 0, 2: 1})
    assert again.labelled == 3
    assert again.right.value == pytest.approx(2 / 3, abs=0.01)
    assert again.compared_right.value == 1.0  # of the two images that the frozen model answered too
    assert again.frozen_right.value == pytest.approx(0.5, abs=0.01)
    assert note.labels == (2, 1, 1)
    assert note.point.items() >= again.measure_accuracy().items()


def test_only_new_labels_replace_what_was_counted_in_quiet_times() -> None:
    assert find_new_labels(NOTE, {0: 1, 2: 0}) == ([1, 0], [-1, -1])
    quiet = replace(NOTE, quiet=True)
    assert find_new_labels(quiet, {0: 1, 1: 0, 2: 0}) == ([1, 0, 0], [2, -1, 1])
    assert find_new_labels(replace(quiet, labels=(1, None, None)), {0: 2, 2: 0}) == ([0], [1])


def test_running_share_forgets() -> None:
    share = RunningShare()
    assert share.value is None
    for hit in [True] * 10 * MEMORY + [False] * MEMORY:
        share = share.add(hit)
    assert share.value == pytest.approx(0.368, abs=0.01)
