"""Images of none of the classes in the engine: no label, a score, nothing learnt, and the same after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lmr
from engine_maker import CALM, NAMES, Clock, make_images, make_method, make_request, wait
from lmr.core.known import score_known
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.engine.records import StepNote, StreamRecord, add_labels, note_answers
from lmr.service.engine.requests import ImageResult
from lmr.service.settings import ServiceSettings
from lmr.service.store.sqlite_store import SqliteStore


def start_engine(path: Path, unknown: float | str | None, **settings: int) -> Engine:
    clip = make_method(watch=None).classifier
    method = lmr.create("lmr", clip, streams=4, unknown=unknown)  # type: ignore[arg-type]
    store = SqliteStore(path, describe_identity(method))
    given = ServiceSettings(resident=4, max_wait_ms=0.0, **settings)  # type: ignore[arg-type]
    engine = Engine(lmr.Watched(method, CALM), NAMES, given, store, threads=False, clock=Clock())
    engine.start()
    return engine


@pytest.mark.parametrize("step", [0, 2])
def test_images_below_the_threshold_have_no_label(tmp_path: Path, step: int) -> None:
    clip = make_method(watch=None).classifier
    with torch.no_grad():
        scores = torch.cat([score_known(clip(make_images("cam", k, 6))) for k in range(2)])
    limit = scores.median().item()
    engine = start_engine(tmp_path / "s.sqlite", limit, step=step)
    found = [one for k in range(2) for one in wait(engine, engine.submit(make_request("cam", k, 6))).answers]
    assert [one.label is None for one in found] == (scores < limit).tolist()
    assert [one.known for one in found] == pytest.approx(scores.tolist())
    assert all(one.error is None and one.probability == one.top[0][1] for one in found)
    status = engine.find("cam").status
    assert (status.label is None, status.known) in {(one.label is None, one.known) for one in found}
    engine.close()


def test_the_chosen_threshold_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    engine = start_engine(path, "auto")
    for k in range(5):
        wait(engine, engine.submit(make_request("cam", k, 8)))
    kept = engine.method.state["known_scores"].sum(1).max().item()
    engine.close()
    assert kept == 32
    engine = start_engine(path, "auto")
    wait(engine, engine.submit(make_request("cam", 5, 1)))
    rows = engine.method.state
    assert rows["known_scores"].sum(1).max().item() == 32
    assert rows["known_block"].sum(1).max().item() == 9
    engine.close()


def test_an_unknown_image_is_wrong_and_not_compared() -> None:
    none = ImageResult(None, 0.4, (("dog", 0.4),), frozen="dog", known=0.1)
    record = note_answers(StreamRecord("cam"), [none])
    assert (record.label, record.probability, record.known) == (None, 0.4, 0.1)
    assert record.differs.value is None
    note = StepNote(1, 1, (0,), ((None, 0.4),), {0: "dog"}, {})
    record, _ = add_labels(record, note, {0: "dog"})
    assert record.right.value == 0
    assert record.compared_right.value is None
