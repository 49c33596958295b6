"""``lmr predict --truth``: labels of a few images correct all answers, against an independent reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax

import lmr
from lmr.apps.predict import taught
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary
from lmr.cli import main
from lmr.core.functional.offset import Estimate, learn_offset
from offset_reference import choose_start, fit_by_scipy
from predict_runs import LABELS, TEXT, Crash, crash_at, draw_arrays, draw_pictures, read_lines

COUNT = 24
USUAL = {"model": "photo", "method": "lmr"}
TRUTH = {0: 3, 2: 3, 5: 3, 11: 1, 14: 3, 20: 0, 23: 3}  # labels by image; what a person says, not what is drawn


def predict_images(sources: Any, labels: Any, **options: Any) -> PredictSummary:
    return taught.predict_taught(sources, PredictOptions(labels=labels, **USUAL | options))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return draw_pictures(tmp_path / "pictures", range(COUNT))


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    file = tmp_path / "labels.csv"
    rows = [f"pictures/img{number}.png,{LABELS[label]}" for number, label in TRUTH.items()]
    file.write_text("\n".join(["path,label", *rows]))
    return file


def answer_frozen() -> NDArray[np.float64]:
    backbone = lmr.load()
    images = backbone.preprocess(list(draw_arrays(range(COUNT))))
    with torch.no_grad():
        return backbone.classifier(LABELS)(images).double().numpy()


def learn(z: NDArray[np.float64], truth: dict[int, int]) -> NDArray[np.float64]:
    """The offset for answers to all images and labels of some."""
    places, labels = np.array(list(truth)), np.array(list(truth.values()))
    return fit_by_scipy(z[places], labels, choose_start(z, z[places], labels, np.arange(len(places))))


def test_answers_equal_the_reference(pictures: Path, truth: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    summary = predict_images(pictures, LABELS, method="zeroshot", truth=truth, out=out, batch_size=7, top=12)
    z = answer_frozen()
    shares = softmax(z + learn(z, TRUTH), axis=1)
    lines = read_lines(out)
    assert [line["path"] for line in lines] == [str(pictures / f"img{number}.png") for number in range(COUNT)]
    for line, expected in zip(lines, shares, strict=True):
        given = dict(line["top"])
        np.testing.assert_allclose([given[name] for name in LABELS], expected, atol=5e-3)
        assert line["label"] == line["top"][0][0]
        assert line.keys() == {"path", "label", "probability", "known", "top"}
    changed = sum(a != b for a, b in zip(shares.argmax(1), z.argmax(1), strict=True))
    assert changed > 3
    right = sum(z[place].argmax() == label for place, label in TRUTH.items())
    assert f"changed {changed} answers" in str(summary.taught)
    assert f"frozen {round(100 * right / len(TRUTH))} %" in str(summary.taught)
    assert summary.counts == {name: sum(line["label"] == name for line in lines) for name in summary.counts}
    assert {path.name for path in tmp_path.iterdir()} == {"pictures", "labels.csv", "out.jsonl"}


@pytest.mark.parametrize("crash", [2, 9, 14, 18, 22])
def test_killed_runs_resume_to_the_same_bytes(pictures: Path, truth: Path, tmp_path: Path, crash: int) -> None:
    (pictures / "img7.png").write_text("broken")
    straight, out = tmp_path / "straight.jsonl", tmp_path / "out.jsonl"
    predict_images(pictures, LABELS, truth=truth, out=straight, batch_size=4)
    with pytest.raises(Crash), crash_at(os, "fsync", crash, "before"):
        predict_images(pictures, LABELS, truth=truth, out=out, batch_size=4)
    begun = Path(f"{out}.first.jsonl").exists()
    predict_images(pictures, LABELS, truth=truth, out=out, batch_size=4, resume=begun)
    assert out.read_bytes() == straight.read_bytes()
    assert not Path(f"{out}.first.jsonl").exists()


def test_second_pass_opens_no_image_again(
    pictures: Path, truth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise Crash

    straight, out = tmp_path / "straight.jsonl", tmp_path / "out.jsonl"
    predict_images(pictures, LABELS, truth=truth, out=straight)
    with monkeypatch.context() as patch:
        patch.setattr(taught, "_correct", fail)
        with pytest.raises(Crash):
            predict_images(pictures, LABELS, truth=truth, out=out)
    with monkeypatch.context() as patch:
        patch.setattr(taught, "predict_images", fail)
        predict_images(pictures, LABELS, truth=truth, out=out, resume=True)
    assert out.read_bytes() == straight.read_bytes()


def test_the_estimate_knows_the_threshold_of_unknown_images(pictures: Path, tmp_path: Path) -> None:
    """An image of a class that gets no label is answered wrongly, with the frozen model too."""
    truth = tmp_path / "truth.csv"
    z = answer_frozen()
    truth.write_text("".join(f"img{place}.png,{LABELS[z[place].argmax()]}\n" for place in range(COUNT)))
    out = tmp_path / "out.jsonl"
    said = str(predict_images(pictures, LABELS, method="zeroshot", truth=truth, out=out, unknown=1.0).taught)
    assert [line["label"] for line in read_lines(out)] == [None] * COUNT
    assert "frozen 0 % " in said
    assert "with your labels 0 % " in said
    threshold = float(np.median([line["known"] for line in read_lines(out)]))
    summary = predict_images(
        pictures, LABELS, method="zeroshot", truth=truth, out=out, unknown=threshold, overwrite=True
    )
    labelled = sum(line["label"] is not None for line in read_lines(out))
    assert 0 < labelled < COUNT
    assert f"frozen {Estimate(labelled, COUNT)}" in str(summary.taught)


@pytest.mark.parametrize("places", [[4], [1, 2, 3], list(range(COUNT))])
def test_few_one_sided_and_all_labels(pictures: Path, tmp_path: Path, places: list[int]) -> None:
    file = tmp_path / "truth.csv"
    file.write_text("\n".join(f"img{place}.png,{LABELS[2]}" for place in places))
    summary = predict_images(pictures, LABELS, method="zeroshot", truth=file, out=tmp_path / "out.jsonl")
    assert ("Estimated accuracy" in str(summary.taught)) == (len(places) >= 5)
    labels = [line["label"] for line in read_lines(tmp_path / "out.jsonl")]
    assert labels.count(LABELS[2]) >= answer_frozen().argmax(1).tolist().count(2)


def test_a_method_that_corrects_its_bias_starts_from_zero(pictures: Path, truth: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    predict_images(pictures, LABELS, method="lmr", truth=truth, out=out, batch_size=8)
    backbone = lmr.load()
    method = lmr.create("lmr", backbone.classifier(LABELS), preset="auto")
    images = backbone.preprocess(list(draw_arrays(range(COUNT))))
    z = torch.cat([method.step(images[first : first + 8]).logits for first in range(0, COUNT, 8)])
    offset = learn_offset(z[list(TRUTH)], torch.tensor(list(TRUTH.values())))
    assert [line["label"] for line in read_lines(out)] == [LABELS[k] for k in (z + offset.float()).argmax(1).tolist()]


def test_standard_output_and_csv(
    pictures: Path, truth: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["predict", str(pictures), "--labels", TEXT, "--model", "photo", "--truth", str(truth)]
    assert main(words) == 0
    captured = capsysbinary.readouterr()
    assert captured.out.count(b"\n") == COUNT
    assert b"7 labels" in captured.err
    assert main([*words, "--out", str(tmp_path / "out.csv")]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == COUNT + 1
    assert main([*words, "--out", str(tmp_path / "out.csv")]) == 2  # it exists
