from pathlib import Path

import numpy as np
import pytest

from lab import labels


def test_table_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(4), 100)
    logits = rng.normal(size=(400, 4)).astype(np.float32)
    logits[np.arange(400), true] += 1.5
    logits[:, 2] += 2  # the model prefers one class
    monkeypatch.setattr(labels, "encode", lambda *_: (logits, true))
    figure = tmp_path / "labels.png"
    assert labels.main(["--corruptions", "fog", "--seeds", "1", "--images", "200", "--figure", str(figure)]) == 0
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if line.startswith("80 % one class")]
    assert len(rows) == 13
    assert said.count("held the accuracy") == 4
    assert figure.stat().st_size > 5000
