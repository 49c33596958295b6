"""The moving picture shows what the two classifiers answered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lab.movie import average_recent, main


def test_movie_is_written_with_its_accuracies(tmp_path: Path) -> None:
    out = tmp_path / "drift.webp"
    assert main([str(out), "--images", "330", "--frames", "3"]) == 0
    with Image.open(out) as picture:
        assert (picture.format, getattr(picture, "n_frames", 1)) == ("WEBP", 3)


def test_a_stream_without_bad_images_is_refused(tmp_path: Path) -> None:
    assert main([str(tmp_path / "drift.webp"), "--images", "300"]) == 2


def test_average_recent_is_the_accuracy_of_a_window() -> None:
    right = np.array([True, False, True, True])
    np.testing.assert_allclose(average_recent(right, 2), [1, 0.5, 0.5, 1])


def test_an_unwritable_file_is_an_error(tmp_path: Path) -> None:
    assert main([str(tmp_path / "missing" / "drift.webp"), "--images", "301", "--frames", "1"]) == 2
