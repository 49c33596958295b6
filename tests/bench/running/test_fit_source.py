"""Clean images before the stream: which ones, and what becomes of them, against the same done by hand."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmr
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.row import read_samples
from lmr.bench.running.run import run_task
from lmr.data.catalogue import open_dataset
from lmr.data.streams import make_stream

SPEC = "eata(diversity=2.0, lr=0.002, fisher=20000.0)"
pytestmark = pytest.mark.usefixtures("tiny_models")
SMALL = {"backbones": "photo", "datasets": "photo-c", "corruptions": "fog", "images": 60, "batch_sizes": 16}


@pytest.fixture(autouse=True)
def _few_clean_images(monkeypatch: pytest.MonkeyPatch) -> None:
    give_source_images(monkeypatch, 150)


def give_source_images(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    method = lmr.find_method("eata")
    monkeypatch.setattr(method, "card", dataclasses.replace(method.card, source_images=count))


def make_task(methods: str = SPEC, **changes: Any) -> Task:
    (task,) = list_tasks([parse_plan("test", "", Path(), SMALL | {"methods": methods} | changes)])
    return task


def answer_by_hand(first: int, last: int) -> torch.Tensor:
    """The largest probabilities [60] of a stream after Fisher values of the clean images in these places."""
    dataset, clean, backbone = open_dataset("photo-c"), open_dataset("photo"), lmr.load()
    method: Any = lmr.create(SPEC, backbone.classifier(dataset.classes))
    order = make_stream(clean, "clean", seed=1).index[first:last].tolist()
    if order:
        parts = [order[k : k + 64] for k in range(0, len(order), 64)]
        images = [torch.from_numpy(np.stack(clean.read("clean", 0, part))) for part in parts]
        method.fit_source([backbone.preprocess(part) for part in images])
    batches = make_stream(dataset, "fog", severity=5, limit=60, batch_size=16)
    steps = (method.step(backbone.preprocess(np.stack(b.images))) for b in batches)
    return torch.cat([step.probabilities.amax(1) for step in steps])


@pytest.mark.parametrize("forgetting", [0, 70])
def test_stream_is_that_after_clean_images_that_forgetting_is_not_measured_on(tmp_path: Path, forgetting: int) -> None:
    task = make_task(forgetting=forgetting)
    row = run_task(task, tmp_path)
    found = torch.from_numpy(read_samples(tmp_path, row.run)["confidence"]).float()
    expected = answer_by_hand(forgetting, forgetting + 150)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    assert (answer_by_hand(0, 0) - expected).abs().max() > 1e-4
    assert (answer_by_hand(300, 450) - expected).abs().max() > 1e-5
    assert row.protocol["source"] == "150 clean images of photo-c before the stream, 64 at a time, unlabelled"


def test_source_images_decide_the_hash_of_these_runs_and_of_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for count in (0, 100, 150):
        give_source_images(monkeypatch, count)
        runs.append((make_task().run, make_task("eta").run))
        assert make_task().source_images == count
        assert make_task("eta").source_images == 0
    assert [len(set(column)) for column in zip(*runs, strict=True)] == [3, 1]


def test_without_clean_images_it_runs_as_it_is_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The stream of a clean set is of clean images itself; and all may be needed to measure forgetting."""
    task = make_task(datasets="photo", corruptions="clean")
    assert task.source_images == 0
    assert make_task(forgetting=open_dataset("photo").count("clean") - 20).source_images == 20
    with caplog.at_level(logging.WARNING, "lmr"):
        row = run_task(task, tmp_path)
    assert "source" not in row.protocol
    assert "eata has no Fisher values" in caplog.text
