"""Images of none of the classes in the engine: no label, a score, and nothing learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lmr
from engine_maker import CALM, NAMES, Clock, make_images, make_method, make_request, wait
from lmr.core.answer import Answer
from lmr.core.known import score_known
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.records import StepNote, StreamRecord, add_labels, note_answers
from lmr.service.settings import ServiceSettings
from lmr.service.store.sqlite_store import SqliteStore


def start_engine(path: Path, unknown: float | None, **settings: int) -> Engine:
    clip = make_method(watch=None).classifier
    method = lmr.create("lmr", clip, streams=4, unknown=unknown)
    store = SqliteStore(path, describe_identity(method))
    given = ServiceSettings(resident=4, max_wait_ms=0.0, **settings)  # type: ignore[arg-type]
    engine = Engine(lmr.Watched(method, CALM), NAMES, given, store, threads=False, clock=Clock())
    engine.start()
    return engine


def test_images_below_the_threshold_have_no_label(tmp_path: Path) -> None:
    clip = make_method(watch=None).classifier
    with torch.no_grad():
        scores = torch.cat([score_known(clip(make_images("cam", k, 6))) for k in range(2)])
    limit = scores.median().item()
    engine = start_engine(tmp_path / "s.sqlite", limit)
    found = [one for k in range(2) for one in wait(engine, engine.submit(make_request("cam", k, 6))).answers]
    assert [one.label is None for one in found] == (scores < limit).tolist()
    assert [one.known for one in found] == pytest.approx(scores.tolist())
    assert all(one.error is None and one.probability == one.top[0][1] for one in found)
    status = engine.find("cam").status
    assert (status.label is None, status.known) in {(one.label is None, one.known) for one in found}
    engine.close()


def test_an_unknown_image_is_wrong_and_not_compared() -> None:
    none = Answer(None, 0.4, top=(("dog", 0.4),), frozen="dog", known=0.1)
    record = note_answers(StreamRecord("cam"), [none])
    assert (record.label, record.probability, record.known) == (None, 0.4, 0.1)
    assert record.differs.value is None
    note = StepNote(1, 1, (0,), ((None, 0.4),), {0: "dog"}, {})
    record, _ = add_labels(record, note, {0: "dog"})
    assert record.right.value == 0
    assert record.compared_right.value is None
