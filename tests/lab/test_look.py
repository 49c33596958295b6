"""The ranges and the words of ordinary photographs."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from lab import look
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.images.files import UnreadableImage


def test_command_prints_ranges_and_counts_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "COUNT", 64)
    monkeypatch.setattr(look, "CORRUPTIONS", ("gaussian_noise",))
    monkeypatch.setattr(look, "EXTRA", ())
    for number, pixels in enumerate(Photographs().read(CLEAN, 0, range(64))):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    assert look.main(["--photographs", str(tmp_path), "--severities", "5"]) == 0
    said = capsys.readouterr().out
    assert said.count("224: (") == 1
    assert "CIFAR-10: ordinary 2" in said
    assert said.count("gaussian_noise 5: noisy") == 3


def test_other_formats_start_no_program(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(UnreadableImage):
        look.read_photographs(tmp_path)
