"""``lmr check``: both accuracies are those of the answers, and the sentence says what the intervals show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import lmr
from lmr.apps.check import CheckReport, OrderResult, check_folder
from lmr.apps.predict.options import PredictOptions
from lmr.cli import main
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.report.statistics import Difference

CLASSES = ("cat", "ship", "truck")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight photographs of each of three classes, and a file that is no image."""
    photos, folder = Photographs(), tmp_path_factory.mktemp("labelled")
    labels = photos.labels(CLEAN)
    for name in CLASSES:
        (folder / name).mkdir()
        places = [place for place in range(200) if photos.classes[labels[place]] == name][:8]
        for place, pixels in zip(places, photos.read(CLEAN, 0, places), strict=True):
            Image.fromarray(pixels).save(folder / name / f"{place}.png")
    (folder / "cat" / "broken.png").write_bytes(b"no image")
    return folder


def count_right(out: Path) -> float:
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return sum(line.get("label") == Path(line["path"]).parent.name for line in lines) / 24


def test_the_accuracies_are_those_of_the_answers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "lmr(lr=0.02)"
    words = ["--labels", ",".join(CLASSES), "--batch-size", "4", "--out"]
    assert main(["predict", str(folder), *words, str(tmp_path / "a.jsonl"), "--method", method]) == 0
    assert main(["predict", str(folder), *words, str(tmp_path / "z.jsonl"), "--method", "zeroshot"]) == 0
    report = check_folder(folder, PredictOptions(labels="", method=method, batch_size=4))
    files, shuffled = report.orders
    assert files.adapted == count_right(tmp_path / "a.jsonl")
    assert files.frozen == shuffled.frozen == count_right(tmp_path / "z.jsonl")
    assert files.difference.mean == pytest.approx(files.adapted - files.frozen)
    assert (files.difference.images, files.unreadable) == (24, 1)
    assert files.watch == "The watch saw nothing unusual."
    capsys.readouterr()
    assert main(["check", str(folder), "--method", method, "--batch-size", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown == f"{report}\n"
    assert "1 images could not be read" in shown
    assert shown.endswith(f"{report.recommendation}\n")


def test_more_names_than_sub_folders_and_shares_count(folder: Path) -> None:
    few = check_folder(folder, PredictOptions(labels=["cat", "ship", "truck"], prior={"cat": 0.9}, batch_size=8))
    many = check_folder(folder, PredictOptions(labels=["dog", "ship", "truck", "cat"], batch_size=8))
    assert "among 4 names" in many.title
    assert "prior={'cat': 0.9}" in few.title
    assert many.recommendation == (
        "It makes no difference: every answer is the frozen model's; if the images are bad from the first on, check "
        "--prior uniform."
    )


@pytest.mark.parametrize(
    ("files", "shuffled", "sentence"),
    [
        ((0.01, 0.05), (0.02, 0.06), "Adapt: the adapted model is more accurate in both orders."),
        ((-0.01, 0.05), (0.02, 0.06), "Adapt: the adapted model is more accurate in the order 'shuffled', without a"),
        ((-0.09, -0.05), (0.02, 0.06), "come as in 'shuffled' and loses when they come as in 'files'"),
        ((-0.09, -0.05), (-0.01, 0.06), "Do not adapt"),
        ((-0.01, 0.05), (-0.02, 0.03), r"Nothing is shown on 9 images, .* by -2.0 to \+5.0 points: keep the frozen"),
    ],
)
def test_only_an_interval_without_zero_counts(
    files: tuple[float, float], shuffled: tuple[float, float], sentence: str
) -> None:
    orders = [
        OrderResult(name, 0.5, 0.5, Difference(sum(ends) / 2, *ends, 0.95, 9, 0.5), 0.1, 0, "")
        for name, ends in (("files", files), ("shuffled", shuffled))
    ]
    report = CheckReport("", tuple(orders))
    assert re.search(sentence, report.recommendation)
    assert report.recommendation.count(". ") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--labels", "cats,shipp,truck,dog"], "without 'cat' (did you mean 'cats'?), 'ship' (did you mean 'shipp'?)"),
        (["--labels", "cat,ship,truck,dgo,zebras"], "does not know 'dgo' (did you mean 'dog'?)"),
        (["--method", "lrm"], "There is no method 'lrm'"),
        (["--batch-size", "0"], "batch size of at least 1"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(
    words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(folder), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_readable_images_is_refused(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(b"no image")
    with pytest.raises(lmr.LmrError, match="None of the 2 images can be answered; the first: "):
        check_folder(tmp_path, PredictOptions(labels=""))


def test_predict_says_how_many_answers_differ(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = lmr.load("photo").classifier(CLASSES)
    files = [str(path) for path in sorted(folder.rglob("*.png")) if path.stem != "broken"]
    words = ["predict", *files, "--labels", ",".join(CLASSES), "--batch-size", "5"]
    calls: list[int] = []
    encode = type(clip).__call__

    def count(self: lmr.ZeroShot, images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return encode(self, images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmr.ZeroShot, "__call__", count)
        assert main([*words, "--method", "lmr(lr=0.5)"]) == 0
    assert sum(calls) == 3  # one image in eight of 24, not one forward per image
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    compared = lines[::8]
    images = torch.stack([lmr.load("photo").preprocess(Image.open(line["path"])) for line in compared])
    with torch.no_grad():
        frozen = [CLASSES[k] for k in clip(images).argmax(1)]
    differing = sum(line["label"] != label for line, label in zip(compared, frozen, strict=True))
    assert f"Of {len(compared)} answers that were compared, {differing} (" in said.err
    assert differing
    assert "'lmr check'" in said.err
    assert main([*words, "--method", "zeroshot"]) == 0
    assert "compared" not in capsys.readouterr().err
    assert main([*words, "--method", "lmr", "--watch", "watch(every=2)"]) == 0
    assert "Of 12 answers that were compared" in capsys.readouterr().err
