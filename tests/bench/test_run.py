from __future__ import annotations

import numpy as np
import torch

import lmr
from lmr.bench.run import Run, run_stream
from lmr.data.pocket import CLASSES
from lmr.data.stream import stream_pocket


def test_run_answers_what_the_method_answers_and_starts_afresh() -> None:
    backbone = lmr.load("pocket")
    classifier = backbone.classifier(CLASSES[:10])
    batches = list(stream_pocket("defocus_blur", 40, 16, seed=3))
    method, twin = lmr.create("lmr", classifier), lmr.create("lmr", classifier)
    first = run_stream(method, batches, backbone.preprocess_pixels)  # type: ignore[attr-defined]
    again = run_stream(method, batches, backbone.preprocess_pixels)  # type: ignore[attr-defined]
    expected = torch.cat([twin.step(backbone.preprocess_pixels(torch.from_numpy(b.pictures))).labels for b in batches])  # type: ignore[attr-defined]
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


def test_stream_is_the_same_in_any_batches_and_corrupts_nothing_else() -> None:
    whole = next(iter(stream_pocket("gaussian_noise", 30, 30, seed=5)))
    parts = list(stream_pocket("gaussian_noise", 30, 8, seed=5))
    clean = next(iter(stream_pocket("clean", 30, 30, seed=5)))
    assert [len(part.labels) for part in parts] == [8, 8, 8, 6]
    assert [part.first for part in parts] == [0, 8, 16, 24]
    assert np.array_equal(np.concatenate([part.pictures for part in parts]), whole.pictures)
    assert np.array_equal(whole.labels, clean.labels)
    assert not np.array_equal(whole.pictures, clean.pictures)
