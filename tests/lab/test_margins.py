"""The figure of candidates and margins is drawn from a real image."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from lab.margins import main


def test_figure_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "margins.png"
    assert main([str(out)]) == 0
    with Image.open(out) as picture:
        assert picture.width > 500
