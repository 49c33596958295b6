"""The contact sheet, by function and by command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmr.cli import main
from lmr.data.corruptions import corrupt, sheet
from lmr.data.corruptions.frost_textures import TEXTURES, load_textures


@pytest.fixture(autouse=True)
def _textures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain white frost in place of the package's photographs, which need not be installed."""
    white = np.full((300, 300, 3), 255, np.uint8)
    monkeypatch.setattr("lmr.data.corruptions.weather.load_textures", lambda scale: (white,) * len(TEXTURES))


def test_the_sheet_shows_every_corruption_at_its_place() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (112, 112, 3)).astype(np.uint8)
    drawn = np.asarray(sheet.draw_sheet(picture, columns=1))
    rows = {"gaussian_noise": 0, "jpeg_compression": 14, "speckle_noise": 15, "saturate": 18}
    for name, row in rows.items():
        for severity in (1, 5):
            top, left = sheet._HEAD + row * 116, sheet._LABEL + (severity - 1) * 116
            cell = drawn[top : top + 112, left : left + 112]
            np.testing.assert_array_equal(cell, corrupt(picture, name, severity))
    clean = drawn[sheet._HEAD + 19 * 116 :][:112, sheet._LABEL : sheet._LABEL + 112]
    np.testing.assert_array_equal(clean, picture)


@pytest.mark.parametrize(("constants", "size"), [("imagenet", 224), ("cifar", 32)])
def test_the_command_takes_any_picture(tmp_path: Path, constants: str, size: int) -> None:
    source, out = tmp_path / "wide.png", tmp_path / "sheet.png"
    Image.new("RGB", (300, 120), (200, 30, 60)).save(source)
    assert sheet.prepare_image(source, size).shape == (size, size, 3)
    assert main(["corruptions", str(out), "--image", str(source), "--constants", constants]) == 0
    with Image.open(out) as written:
        assert written.size[0] > 1000


def test_without_a_picture_there_is_a_portrait() -> None:
    portrait = sheet.prepare_image(None, 224)
    assert portrait.shape == (224, 224, 3)
    assert portrait.std() > 40


def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    assert main(["corruptions", str(tmp_path / "out.png"), "--image", str(broken)]) == 2
    assert "broken.png" in capsys.readouterr().err
    load_textures.cache_clear()
    monkeypatch.setattr("lmr.data.corruptions.weather.load_textures", load_textures)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["corruptions", str(tmp_path / "out.png"), "--constants", "cifar"]) == 2
    assert "pip install 'lmr[frost]'" in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()
    load_textures.cache_clear()
