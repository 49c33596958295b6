from __future__ import annotations

import numpy as np
import torch

import lmr
from lmr.apps.demo_run import Run, run_stream
from lmr.data.sets.catalogue import open_dataset
from lmr.data.sets.pocket_world import CLASSES
from lmr.data.streams import make_stream


def test_run_answers_what_the_method_answers_and_starts_afresh() -> None:
    backbone = lmr.load("pocket")
    classifier = backbone.classifier(CLASSES)
    batches = list(make_stream(open_dataset("pocket-c"), "defocus_blur", limit=40, batch_size=16))
    method, twin = lmr.create("lmr", classifier), lmr.create("lmr", classifier)
    first = run_stream(method, batches, backbone)
    again = run_stream(method, batches, backbone)
    images = [backbone.preprocess_pixels(torch.from_numpy(np.stack(batch.images))) for batch in batches]
    expected = torch.cat([twin.step(part).labels for part in images])
    assert np.array_equal(first.predicted, expected.numpy())
    assert np.array_equal(first.predicted, again.predicted)
    assert np.array_equal(first.true, np.concatenate([batch.labels for batch in batches]))
    assert first.seconds > 0


def test_numbers_of_a_run() -> None:
    run = Run(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0]), seconds=2.0, classes=3)
    assert run.accuracy == 0.5
    assert run.top_share == 0.5
    assert run.ms_per_image == 500.0
    accuracy, share = run.curves()
    assert accuracy.tolist() == [1.0, 0.5, 2 / 3, 0.5]
    assert share.tolist() == [1.0, 1.0, 2 / 3, 0.5]
