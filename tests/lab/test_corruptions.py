"""The contact sheet, by function and by command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab import corruptions as lab
from lmr.data.corruptions.weather import TEXTURES


@pytest.fixture(autouse=True)
def _textures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain white frost instead of the package's photographs, which need not be installed."""
    white = np.full((300, 300, 3), 255, np.uint8)
    monkeypatch.setattr("lmr.data.corruptions.weather.load_textures", lambda scale: (white,) * len(TEXTURES))


@pytest.mark.parametrize(("constants", "size"), [("imagenet", 224), ("cifar", 32)])
def test_command_takes_any_image(tmp_path: Path, constants: str, size: int) -> None:
    source, out = tmp_path / "wide.png", tmp_path / "sheet.png"
    Image.new("RGB", (300, 120), (200, 30, 60)).save(source)
    assert lab.prepare_image(source, size).shape == (size, size, 3)
    assert lab.main([str(out), "--image", str(source), "--constants", constants]) == 0
    with Image.open(out) as written:
        assert written.size[0] > 1000
