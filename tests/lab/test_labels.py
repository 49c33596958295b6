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


def test_streams_have_the_mixture_that_they_are_named_after() -> None:
    true = np.repeat(np.arange(10), 500)
    for draw in labels.draw_streams(np.zeros((5000, 10), np.float32), true, 500, (1, 2)):
        most = np.bincount(draw.labels, minlength=10).max() / 500
        expected = {"balanced": 0.1, "60 % one class": 0.6, "80 % one class": 0.8, "95 % one class": 0.95}
        assert most == pytest.approx(expected.get(draw.mixture, 0.4), abs=0.06)
