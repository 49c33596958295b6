"""The forwards that reuse saves are measured on made streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab.reuse import main


def test_each_kind_of_stream_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    for number in range(10):
        Image.fromarray(random.integers(0, 256, (8, 16, 3), np.uint8)).save(tmp_path / f"{number}.png")
    assert main([str(tmp_path), "--frames", "48", "--noise", "2", "--scenes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| still", "| light", "| object", "| cuts", "| pan", "| bursts"
    ]  # fmt: skip
    still = dict(zip(("saved", "changed"), lines[2].split(" | ")[3:], strict=False))
    assert float(still["saved"].rstrip(" %")) > 40
