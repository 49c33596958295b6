"""The moving picture shows what the two classifiers answered."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from lab.movie import main


def test_movie_is_written_with_its_accuracies(tmp_path: Path) -> None:
    out = tmp_path / "drift.webp"
    assert main([str(out), "--images", "330", "--frames", "3"]) == 0
    with Image.open(out) as picture:
        assert (picture.format, getattr(picture, "n_frames", 1)) == ("WEBP", 3)
