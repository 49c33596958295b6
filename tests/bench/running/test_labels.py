"""Runs in which a few images reveal their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmr
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.labels import choose_labelled
from lmr.bench.running.row import read_samples
from lmr.bench.running.run import Stop, run_task
from lmr.data.catalogue import open_dataset

pytestmark = pytest.mark.usefixtures("tiny_models")
SMALL = {"datasets": "photo-c", "backbones": "photo", "corruptions": "fog", "images": 60, "batch_sizes": 16}


def make_task(**changes: Any) -> Task:
    (task,) = list_tasks([parse_plan("test", "", Path(), SMALL | {"methods": "lmr"} | changes)])
    return task


@pytest.mark.parametrize("when", ["causal", "whole"])
@pytest.mark.parametrize("onset", [0, 10])
def test_labels_are_learnt_as_the_plan_says(tmp_path: Path, when: str, onset: int) -> None:
    task = make_task(labels=8, labels_when=when, onset=onset)
    dataset, backbone = open_dataset("photo-c"), lmr.load()
    stream = task.open_stream(dataset)
    places = choose_labelled(task, stream)
    assert len(set(places.tolist())) == 8
    assert places.min() >= onset
    method = lmr.Labelled(lmr.create("lmr", backbone.classifier(dataset.classes), preset="default"))
    batches = list(stream)
    images = backbone.preprocess([image for batch in batches for image in batch.images])
    true = np.concatenate([batch.labels for batch in batches])
    if when == "whole":
        method.learn_labels(images[places], true[places].tolist())
    predicted, first = [], 0
    for batch in batches:
        end = first + len(batch.labels)
        predicted += method.step(images[first:end]).labels.tolist()
        own = [place for place in places if first <= place < end]
        if when == "causal" and own:
            method.learn_labels(own, true[own].tolist())
        first = end
    row = run_task(task, tmp_path)
    assert read_samples(tmp_path, row.run)["predicted"].tolist() == predicted
    judged = np.arange(60) >= onset
    if when == "whole":
        judged[places] = False
    assert row.metrics["accuracy"] == pytest.approx((np.array(predicted) == true)[judged].mean())
    assert row.order["labels"] == f"8 {when}"


@pytest.mark.parametrize("when", ["causal", "whole"])
def test_run_with_labels_continues_from_a_checkpoint(tmp_path: Path, when: str) -> None:
    task = make_task(labels=8, labels_when=when)

    def stop(images: int) -> None:
        if images >= 32:
            raise Stop

    with pytest.raises(Stop):
        run_task(task, tmp_path / "stopped", stop)
    resumed, whole = run_task(task, tmp_path / "stopped"), run_task(task, tmp_path / "whole")
    assert resumed.metrics["accuracy"] == whole.metrics["accuracy"]
    first, second = (read_samples(tmp_path / name, task.run) for name in ("stopped", "whole"))
    assert np.array_equal(first["predicted"], second["predicted"])


def test_a_stream_of_labelled_images_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="reveal"):
        run_task(make_task(labels=8, labels_when="whole", images=8), tmp_path)
