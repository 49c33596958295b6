"""The cost of ``lmr predict``: both sides do the same work, and what does not fit gets an error message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

import lmr
from lab import predict_cost as cost_file
from lab.predict_cost import (
    PHOTOGRAPH,
    PredictCost,
    PredictCostOptions,
    main,
    measure_predict_cost,
    write_photographs,
)


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_cost(
    predict: tuple[float, ...], steps: tuple[float, ...], images: int = 512, aimed: bool = True
) -> PredictCost:
    return PredictCost("a model", "lmr", images, 64, 2, "a machine", 90_000, predict, steps, aimed)


def test_command_prints_both_times_and_the_ratio(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["pocket", "--images", "6", "--batch-size", "4", "--rounds", "2", "--threads", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "pocket; lmr(" in said
    assert "6 JPEG files of 500x375 pixels" in said
    assert "predict: files to lines" in said
    assert "predict over a folder of photographs / the steps alone" in said
    assert "for ViT-B/16" in said
    assert list(tmp_path.iterdir()) == []


def test_both_sides_see_every_image_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = lmr.Method.step

    def count(self: lmr.Method, images: torch.Tensor) -> lmr.Prediction:
        seen.append(len(images))
        return real(self, images)

    monkeypatch.setattr(lmr.Method, "step", count)
    cost = measure_predict_cost(PredictCostOptions("photo", None, 5, 2, "zeroshot", rounds=2, threads=1))
    assert seen == [2] + 4 * [2, 2, 1]
    assert len(cost.predict) == len(cost.steps) == 2
    assert min(cost.predict + cost.steps) > 0
    assert (cost.images, cost.batch_size, cost.threads, cost.aimed) == (5, 2, 1, False)


def test_different_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_file, "_time_steps", lambda method, inputs: (1.0, ["0"] * 5))
    with pytest.raises(lmr.LmrError, match="predicted different classes"):
        measure_predict_cost(PredictCostOptions("pocket", None, 5, 5, rounds=1, threads=1))


def test_ratio_is_that_of_medians() -> None:
    verdict = make_cost((1.0, 1.1, 3.0), (1.0, 1.0, 2.0)).verdict
    assert verdict.value == pytest.approx(1.1)
    assert (verdict.low, verdict.high, verdict.result) == (1.0, 1.5, "missed")
    assert make_cost((1.04,), (1.0,)).verdict.result == "met"
    assert make_cost((1.04,), (1.0,), images=64).verdict.result == "for 512 images"
    assert make_cost((1.04,), (1.0,), aimed=False).verdict.result == "for ViT-B/16"


def test_photographs_are_like_photographs_and_always_the_same(tmp_path: Path) -> None:
    sizes = write_photographs(tmp_path / "one", 3)
    write_photographs(tmp_path / "two", 3)
    for number in range(3):
        content = (tmp_path / "one" / f"{number}.jpg").read_bytes()
        assert content == (tmp_path / "two" / f"{number}.jpg").read_bytes()
        assert sizes[number] == len(content)
        with Image.open(tmp_path / "one" / f"{number}.jpg") as image:
            assert (image.size, image.mode) == (PHOTOGRAPH, "RGB")
    assert all(60_000 < size < 160_000 for size in sizes)  # those of ImageNet have 110 kB on average


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pocket", "--images", "0"], "Expected a number of images of at least 1, got 0."),
        (["pocket", "--rounds", "0"], "Expected a number of rounds of at least 1, got 0."),
        ([], "Give either a model or the architecture of a random one"),
        (["--random", "small"], "has no preprocessing; measure another one"),
        (["pocket", "--method", "lrm", "--images", "1"], "There is no method 'lrm'."),
    ],
)
def test_what_does_not_fit_gets_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
