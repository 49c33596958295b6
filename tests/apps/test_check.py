"""``lmr check``: both accuracies are those of the answers, and the sentence says what the intervals show."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lmr
from lmr.apps.check import (
    DEFAULT,
    OPTION,
    TEACHING,
    CheckReport,
    SettingResult,
    _choose_second,
    _Run,
    check_folder,
)
from lmr.apps.predict import run as run_file
from lmr.apps.predict.options import CheckOptions, PredictOptions
from lmr.apps.predict.taught import predict_taught
from lmr.cli import main
from lmr.core.functional.offset import Estimate
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.images.sources import ImageItem
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


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (
            "steady",
            [
                "frozen model",
                "steady",
                "steady, equal shares, one pass",
                "shares of the labels, one pass",
                "LMR, one pass",
            ],
        ),
        ("tent(lr=0.01)", ["frozen model", "tent, one pass", "tent, two passes", "LMR, one pass"]),
    ],
)
def test_every_setting_has_the_accuracy_of_its_command(
    method: str, settings: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check_folder(folder, CheckOptions(batch_size=4, method=method))
    assert [one.name for one in report.settings] == [*settings, "11 labels"]
    judged = sorted((path for path in folder.rglob("*.png")), key=lambda path: int("0" + re.sub(r"\D", "", path.stem)))
    judged = [path for path in judged if path.stem != "broken"]
    assert report.settings[0].difference.images == 13
    capsys.readouterr()
    for one in report.settings[:-1]:
        words = shlex.split(one.command)
        assert words[:3] == ["lmr", "predict", str(folder)]
        assert main([words[1], *map(str, judged), *words[3:], "--out", str(tmp_path / "o.csv"), "--overwrite"]) == 0
        with open(tmp_path / "o.csv") as file:
            answers = [row["label"] == Path(row["path"]).parent.name for row in csv.DictReader(file)]
        assert 0 <= sum(answers) - round(13 * one.accuracy) <= 11  # thirteen of the images judge
    capsys.readouterr()
    assert main(["check", str(folder), "--batch-size", "4", "--method", method]) == 0
    assert capsys.readouterr().out == f"{report}\n"
    assert "1 images could not be read" in report.title


def test_default_and_the_best_setting_get_a_second_pass() -> None:
    method = lmr.create("zeroshot", lmr.load().classifier(CLASSES))
    answers: dict[tuple[str, ...], list[str | None]] = {
        ("frozen",): ["cat", "cat", "cat"],
        (): ["cat", "ship", "cat"],
        ("good",): ["cat", "ship", "truck"],
        ("bad",): ["ship", "ship", "cat"],
    }
    runs = {name: _Run(method, 2, 3, [labels]) for name, labels in answers.items()}
    runs["frozen",].passes = 1
    assert _choose_second(runs, ["cat", "ship", "truck"]) == [runs[()], runs["good",]]
    assert _choose_second(runs, ["cat", "ship", None]) == [runs[()]]
    runs["good",].adapted = 0
    assert _choose_second(runs, ["cat", "ship", "truck"]) == [runs[()]]


def test_images_are_encoded_once_and_in_the_order_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, encode = list[int](), lmr.ZeroShot.encode

    def count(self: lmr.ZeroShot, images: torch.Tensor) -> torch.Tensor:
        encoded.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(lmr.ZeroShot, "encode", count)
    check_folder(folder, CheckOptions(batch_size=4))
    assert sum(encoded) == 24  # by all settings that do not adapt; the others encode with norms of their own
    later = sorted(folder.rglob("*.png"), key=lambda path: path.name, reverse=True)
    for number, path in enumerate(later):
        os.utime(path, (number, number))
    opened, prepare = list[str](), run_file.PredictRun.prepare
    monkeypatch.setattr(run_file, "WORKERS", 1)

    def note(self: run_file.PredictRun, item: ImageItem) -> run_file.Prepared:
        opened.append(item.place.path.name)
        return prepare(self, item)

    monkeypatch.setattr(run_file.PredictRun, "prepare", note)
    monkeypatch.setattr("lmr.apps.check.WORKERS", 1)
    check_folder(folder, CheckOptions(batch_size=4, order="times", passes=1))
    assert opened == [path.name for path in later]


def test_more_names_than_sub_folders_and_shares_count(folder: Path) -> None:
    few = check_folder(folder, CheckOptions(labels="cat,ship,truck", prior={"cat": 0.9}, batch_size=8))
    many = check_folder(folder, CheckOptions(labels="dog,ship,truck,cat", batch_size=8))
    assert "3 of 4 classes" in many.title
    assert len(few.settings) == 5  # no other shares than those given


def make_setting(name: str, accuracy: float, low: float, high: float, effort: int = OPTION) -> SettingResult:
    difference = Difference((low + high) / 2, low, high, 100)
    return SettingResult(name, f"lmr predict {name}", accuracy, difference, 0.1, effort)


def test_recommendation_follows_the_intervals() -> None:
    frozen = make_setting("frozen model", 0.5, 0, 0)
    good, better = make_setting("good", 0.6, 0.01, 0.2), make_setting("better", 0.65, 0.02, 0.2)
    chance, sure = make_setting("chance", 0.7, -0.1, 0.3, DEFAULT), make_setting("worse", 0.4, -0.2, -0.01)

    def recommend(*settings: SettingResult, share: float = 0.2) -> str:
        return CheckReport("", settings, ("cat", share), "lmr check another").recommendation

    assert recommend(frozen, good, better, chance).endswith("lmr predict better")
    assert recommend(frozen, chance, sure).endswith("lmr predict chance")
    assert recommend(frozen, sure).endswith("lmr predict frozen model")
    line = recommend(make_setting("frozen model", 0.1, 0, 0))
    assert "does not work" in line
    assert line.endswith("lmr check another")


def test_as_good_with_less_work_is_recommended() -> None:
    frozen, default = make_setting("frozen model", 0.5, 0, 0), make_setting("default", 0.5, 0, 0, DEFAULT)
    option, labels = make_setting("option", 0.6, 0.05, 0.15), make_setting("labels", 0.62, 0.08, 0.16, TEACHING)

    def recommend(*settings: SettingResult) -> str:
        return CheckReport("", (frozen, *settings), ("cat", 0.2)).recommendation

    said = recommend(default, option, labels)
    assert said.endswith("lmr predict option")
    assert "Best: option, +10.0 points on 100 images (labels: +12.0, not clearly more)." in said
    assert recommend(default, option, make_setting("labels", 0.9, 0.3, 0.5, TEACHING)).endswith("lmr predict labels")
    assert recommend(option, make_setting("default", 0.59, 0.01, 0.17, DEFAULT)).endswith("lmr predict default")
    assert recommend(make_setting("one pass", 0.5, 0, 0), default).endswith("lmr predict default")


def test_sub_folders_are_labels_as_they_are(folder: Path, tmp_path: Path) -> None:
    report = check_folder(folder, CheckOptions(batch_size=4))
    command = next(one.command for one in report.settings if one.effort == TEACHING)
    assert command == f"lmr predict {folder} --labels cat,ship,truck --batch-size 4 --truth {folder}"
    assert main([*shlex.split(command)[1:], "--out", str(tmp_path / "out.jsonl")]) == 0
    assert "lmr label" not in str(report)


def test_help_is_about_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "they correct all answers" not in said
    assert "also try a second pass" in said


def test_an_undecided_majority_suppresses_no_recommendation() -> None:
    """The model is called bad only where it is; a setting that is shown to be better is always named."""
    frozen, better = make_setting("frozen model", 0.1, 0, 0), make_setting("better", 0.65, 0.02, 0.2)

    def recommend(share: float, *settings: SettingResult) -> str:
        return CheckReport("", settings, ("cat", share), "lmr check another").recommendation

    close = recommend(0.6, frozen, better)
    assert "does not work" not in close
    assert "lmr predict better" in close
    more = int(re.search(r"100 labels are too few .*; label about (\d+) more", close)[1])  # type: ignore[index]
    assert Estimate(round(0.65 * (100 + more)), 100 + more).interval[0] > 0.6
    assert Estimate(round(0.65 * (90 + more)), 90 + more).interval[0] <= 0.6
    assert "label many more" in recommend(0.65, frozen, better)
    bad = recommend(0.9, frozen, better)
    assert "does not work" in bad
    assert "lmr check another" in bad
    assert bad.endswith("lmr predict better")


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
    with pytest.raises(lmr.LmrError, match="None of the 2 images can be answered"):
        check_folder(tmp_path, CheckOptions(labels=None))


def test_predict_says_how_many_answers_differ(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = lmr.load("photo").classifier(CLASSES)
    files = [str(path) for path in sorted(folder.rglob("*.png")) if path.stem != "broken"]
    words = ["predict", *files, "--labels", ",".join(CLASSES), "--batch-size", "5", "--passes", "1"]
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
    assert f"({differing} of a sample of {len(compared)})" in said.err
    assert differing
    assert main([*words, "--method", "zeroshot"]) == 0
    assert "sample" not in capsys.readouterr().err
    assert main([*words, "--method", "lmr", "--watch", "watch(every=2)"]) == 0
    assert "of a sample of 12)" in capsys.readouterr().err


def test_labels_in_a_file_need_no_sub_folders(folder: Path, tmp_path: Path) -> None:
    images = sorted(path for path in folder.rglob("*.png") if path.name != "broken.png")
    file = tmp_path / "labels.csv"
    file.write_text("\n".join(f"{path},{path.parent.name}" for path in images[::2]))
    options = CheckOptions(labels=",".join(CLASSES), truth=file, method="lmr(lr=0.02)", batch_size=4)
    report = check_folder(folder, options)
    assert "12 images judged, 3 of 3 classes" in report.title
    assert "the other labels teach" in report.title
    assert report.settings[-1].name == "12 labels"
    assert report.settings[-1].command.endswith(f"--truth {file}")
    assert "--method 'lmr(lr=0.02)'" in report.settings[1].command


@pytest.mark.parametrize("count", [20, 60])
def test_few_labels_of_skewed_images_are_recommended(count: int, tmp_path: Path) -> None:
    """Noise, and 80 % dogs: the majority is hard to beat for sure, but labels gain much."""
    photos = Photographs()
    labels = np.array(photos.labels(CLEAN))
    dogs = labels == photos.classes.index("dog")
    places = np.random.default_rng(0).permutation([*np.flatnonzero(dogs)[:64], *np.flatnonzero(~dogs)[:16]])
    noisy = lmr.corrupt(np.stack(photos.read(CLEAN, 0, places.tolist())), "gaussian_noise", 5, constants="cifar")
    for number, pixels in enumerate(noisy):
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    file = tmp_path / "labels.csv"
    file.write_text("".join(f"{k:02}.png,{photos.classes[labels[place]]}\n" for k, place in enumerate(places[:count])))
    report = check_folder(tmp_path, CheckOptions(labels=",".join(photos.classes), truth=file, method="zeroshot"))
    assert f"{count} images judged" in report.title
    assert report.better[0] is report.settings[-1]
    assert report.better[0].name == f"{count} labels"
    assert "does not work" not in report.recommendation
    options = PredictOptions(labels=",".join(photos.classes), truth=file, method="zeroshot", out=tmp_path / "o.jsonl")
    said = predict_taught(tmp_path, options).taught
    assert f"with your labels {Estimate(round(report.better[0].accuracy * count), count)}" in str(said)
