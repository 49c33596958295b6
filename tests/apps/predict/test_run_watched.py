"""``lmr predict --watch``: watched folders resume to the same bytes, and the summary says what the watch saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from lmr import LmrError
from lmr.apps.predict.run import PredictRun
from predict_runs import LABELS, draw_arrays, predict_images

EAGER = "watch(every=1, entropy=1e6, spread=1e6, entropy_ratio=0, least=1, confirm=2, rest=1)"  # alarmed by everything


class Crash(BaseException):
    """The end of a process in the middle of a run."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for k, pixels in enumerate(draw_arrays(range(20, 30))):
        Image.fromarray(pixels).save(tmp_path / "images" / f"{k}.png")
    return tmp_path


def label(folder: Path, out: str, watch: str, resume: bool = False) -> str:
    summary = predict_images(
        folder / "images", LABELS, model="photo", method="lmr", batch_size=2, out=folder / out, watch=watch,
        state=folder / f"{out}.state", resume=resume,
    )  # fmt: skip
    return str(summary)


def test_watched_run_that_is_killed_resumes_to_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = label(folder, "whole.jsonl", EAGER)
    assert "The watch changed the health of streams: 1 to suspected, " in words
    answer, calls = PredictRun.answer, 0

    def die(self: PredictRun, chunk: list[Path]) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Crash
        return answer(self, chunk)

    monkeypatch.setattr(PredictRun, "answer", die)
    with pytest.raises(Crash):
        label(folder, "parts.jsonl", EAGER)
    with pytest.raises(LmrError, match="The run had --watch watch"):
        label(folder, "parts.jsonl", "on", resume=True)
    with pytest.raises(LmrError, match="in a wrapper"):
        label(folder, "parts.jsonl", "off", resume=True)
    label(folder, "parts.jsonl", EAGER, resume=True)
    assert (folder / "parts.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()


def test_report_answers_as_without_a_watch(folder: Path) -> None:
    assert "watch" not in label(folder, "plain.jsonl", "off")
    assert label(folder, "report.jsonl", "report").endswith("The watch saw nothing unusual.")
    assert (folder / "plain.jsonl").read_bytes() == (folder / "report.jsonl").read_bytes()
