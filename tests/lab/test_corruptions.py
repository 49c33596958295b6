"""The contact sheet, by function and by command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab import corruptions as lab
from lmr.data.corruptions.apply import corrupt
from lmr.data.corruptions.weather import TEXTURES


@pytest.fixture(autouse=True)
def _textures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain white frost instead of the package's photographs, which need not be installed."""
    white = np.full((300, 300, 3), 255, np.uint8)
    monkeypatch.setattr("lmr.data.corruptions.weather.load_textures", lambda scale: (white,) * len(TEXTURES))


def test_sheet_shows_every_corruption_at_its_place() -> None:
    image = np.random.default_rng(0).integers(0, 256, (112, 112, 3)).astype(np.uint8)
    drawn = np.asarray(lab.draw_sheet(image, columns=1))
    rows = {"gaussian_noise": 0, "jpeg_compression": 14, "speckle_noise": 15, "saturate": 18}
    for name, row in rows.items():
        for severity in (1, 5):
            top, left = lab._HEAD + row * 116, lab._LABEL + (severity - 1) * 116
            cell = drawn[top : top + 112, left : left + 112]
            np.testing.assert_array_equal(cell, corrupt(image, name, severity))
    clean = drawn[lab._HEAD + 19 * 116 :][:112, lab._LABEL : lab._LABEL + 112]
    np.testing.assert_array_equal(clean, image)


@pytest.mark.parametrize(("constants", "size"), [("imagenet", 224), ("cifar", 32)])
def test_command_takes_any_image(tmp_path: Path, constants: str, size: int) -> None:
    source, out = tmp_path / "wide.png", tmp_path / "sheet.png"
    Image.new("RGB", (300, 120), (200, 30, 60)).save(source)
    assert lab.prepare_image(source, size).shape == (size, size, 3)
    assert lab.main([str(out), "--image", str(source), "--constants", constants]) == 0
    with Image.open(out) as written:
        assert written.size[0] > 1000
