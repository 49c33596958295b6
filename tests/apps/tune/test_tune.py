"""``lmr tune`` on a folder and on a plan: scores, files, resuming, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.apps.tune import tune as module
from lmr.apps.tune.sources import find_plan, open_sources
from lmr.apps.tune.tune import tune_images
from lmr.bench.plans.plan import read_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.run import run_task
from lmr.bench.tune.trials import Trials
from lmr.data.pocket_world import CLASSES, draw, list_labels

pytestmark = pytest.mark.usefixtures("tiny_models")

NAMES = ["red star", "blue ring", "green cross"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten drawings of each of three classes in sub-folders, and a file that is no image."""
    folder = tmp_path_factory.mktemp("photos")
    labels = list_labels(3000, 5)
    for name in NAMES:
        (folder / name).mkdir()
        indices = np.flatnonzero(labels == CLASSES.index(name))[:10]
        for index, pixels in zip(indices, draw(indices, 5)[0], strict=True):
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    (folder / NAMES[0] / "broken.png").write_bytes(b"no image")
    return folder


def open_photos(photos: Path, **options: Any) -> list[Any]:
    given: dict[str, Any] = {"labels": NAMES, "over": ["lr=1e-3,1e-2"], "model": "pocket", "batch_size": 8} | options
    return open_sources([photos], **given)


def test_a_folder_is_scored(photos: Path, tmp_path: Path) -> None:
    outcome = tune_images(open_photos(photos), tmp_path / "out")
    (result,) = outcome.results
    specs = [entry.spec for entry in result.entries]
    clip = lmr.load("pocket").classifier(NAMES)
    assert specs == [lmr.create(f"lmr(lr={lr})", clip, preset="auto", pace="image").spec for lr in (1e-3, 1e-2)]
    assert (len(result.places), result.unreadable) == (30, 1)
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    (stream,) = content["streams"]
    assert stream["recommended"] == specs[result.recommended]
    assert stream["default"] == specs[0]
    assert [one["scores"] for one in stream["entries"]] == result.scores
    rows = list(csv.DictReader((tmp_path / "out" / "scores.csv").read_text().splitlines()))
    assert [row["spec"] for row in rows] == specs
    assert float(rows[1]["entropy"]) == result.scores[1]["entropy"]
    shown = outcome.describe()
    assert f"Recommended: {specs[result.recommended]}" in shown
    assert "lr=0.001 (default)" in shown
    assert "30 images, 1 more could not be read" in shown
    assert {path.suffix for path in (tmp_path / "out" / "streams").iterdir()} == {".json"}


def test_without_values_the_learning_rate_is_varied(photos: Path) -> None:
    (source,) = open_photos(photos, over=[], method="tent(lr=1e-4)")
    assert [one.lr for one in source.create_methods()] == [1e-4, 3e-5, 3e-4, 1e-3]
    with pytest.raises(lmr.LmrError, match=r"tda has no learning rate to vary; give the values to try, as in --over"):
        open_photos(photos, over=[], method="tda")


def test_the_same_command_again_resumes(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tune_images(open_photos(photos), tmp_path / "whole")
    take = Trials._take

    def interrupt(self: Trials, batch: Any) -> None:
        if self.batches == 2:
            raise KeyboardInterrupt
        take(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Trials, "_take", interrupt)
        with pytest.raises(KeyboardInterrupt, match="the same command again"):
            tune_images(open_photos(photos), tmp_path / "out")
    assert [path.suffix for path in (tmp_path / "out" / "streams").iterdir()] == [".state"]
    again = tune_images(open_photos(photos), tmp_path / "out")
    assert again.results == whole.results
    assert (tmp_path / "out" / "scores.json").read_bytes() == (tmp_path / "whole" / "scores.json").read_bytes()
    monkeypatch.setattr(module, "Trials", None)  # what is finished is not measured again
    assert tune_images(open_photos(photos), tmp_path / "out").results == whole.results


def test_other_images_or_values_are_other_trials(photos: Path) -> None:
    keys = {
        open_photos(photos, **options)[0].key
        for options in ({}, {"batch_size": 4}, {"images": 9}, {"in_order": True}, {"over": ["lr=1e-3,2e-3"]})
    }
    assert len(keys) == 5
    assert open_photos(photos)[0].key in keys


@pytest.mark.usefixtures("own_methods")
def test_an_edited_method_file_is_measured_again(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "own_tuned.py"

    def measure(factor: float) -> float:
        file.write_text(
            "import lmr\n\n\n@lmr.register('own_tuned')\nclass OwnTuned(lmr.Method):\n"
            "    'The frozen classifier, flatter.'\n\n    power: float = 1.0\n\n"
            "    def adapt(self, images, state, streams):\n"
            "        return lmr.Step(self.answer(images, state, streams), {})\n\n"
            "    def answer(self, images, state, streams):\n"
            f"        return {factor} * self.power * self.classifier(images)\n"
        )
        sources = open_photos(photos, method=f"{file}:own_tuned", over=["power=1.0,2.0"])
        return tune_images(sources, tmp_path / "out").results[0].scores[0]["entropy"]

    first = measure(1.0)
    assert measure(0.1) < first
    assert measure(1.0) == first
    assert len(list((tmp_path / "out" / "streams").iterdir())) == 2


@pytest.mark.usefixtures("own_methods")
def test_a_method_file_that_changes_meanwhile_is_refused(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "own_changing.py"
    file.write_text(
        "import lmr\n\n\n@lmr.register('own_changing')\n"
        "class Own(lmr.find_method('zeroshot')):\n    power: float = 1.0\n"
    )
    (source,) = open_photos(photos, method=f"{file}:own_changing", over=["power=1.0,2.0"])
    file.write_text(file.read_text() + "\n")
    with pytest.raises(lmr.LmrError, match="was changed"):
        tune_images([source], tmp_path / "out")


def test_other_results_are_measured_again(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = open_photos(photos)[0].key
    monkeypatch.setattr("lmr.apps.tune.sources.RESULTS_VERSION", "another")
    assert open_photos(photos)[0].key != key


def test_a_damaged_result_is_named(photos: Path, tmp_path: Path) -> None:
    (source,) = open_photos(photos)
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / f"{source.key}.json").write_text("{}")
    with pytest.raises(lmr.LmrError, match="remove it to measure that stream again"):
        tune_images([source], tmp_path)


def test_entries_that_study_clean_images(tmp_path: Path) -> None:
    """They are entries beside others, and have what a bench would show them."""
    plan = tmp_path / "mine.toml"
    plan.write_text(
        'datasets = "pocket-c-64"\ncorruptions = "fog"\nbackbones = "pocket"\nbatch_sizes = 16\nimages = 32\n'
        'methods = ["tent", "eata"]\n'
    )
    (source,) = open_sources([plan])
    plain, studying = source.create_methods()
    assert (plain.name, studying.name) == ("tent", "eata")
    assert studying.state["fisher"].abs().max() > 0
    (result,) = tune_images([source], tmp_path / "out").results
    rows = [run_task(task, tmp_path / "runs") for task in list_tasks([read_plan(plan)])]
    truth = source.images.labels  # type: ignore[union-attr]
    found = [(np.array(entry.labels) == truth).mean() for entry in result.entries]
    assert found == pytest.approx([row.metrics["accuracy"] for row in rows])


def test_values_replace_the_methods_of_a_plan() -> None:
    sources = open_sources(["tune-pocket-quick"], over=["lr=1e-3,1e-2"], images=16)
    assert {source.count for source in sources} == {16}
    assert [method.lr for method in sources[0].create_methods()] == [1e-3, 1e-2]  # type: ignore[attr-defined]


def test_plans_are_told_from_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_plan(["pocket"]) == "pocket"
    assert find_plan(["mine.toml"]) == "mine.toml"
    (tmp_path / "pocket").mkdir()
    assert find_plan(["pocket"]) is None
    with pytest.raises(lmr.LmrError, match="one plan"):
        find_plan(["photo", "pocket"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": None}, "--labels"),
        ({"over": ["rate=1"]}, "no argument 'rate'"),
        ({"over": ["lr=1e-3"]}, "nothing to choose from"),
        ({"batch_size": 0}, "batch size of at least 1"),
        ({"images": 0}, "number of images of at least 1"),
    ],
)
def test_what_makes_no_choice_is_refused(photos: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(lmr.LmrError, match=message):
        open_photos(photos, **options)


def test_options_of_a_folder_are_refused_for_a_plan() -> None:
    with pytest.raises(lmr.LmrError, match="has its own classes"):
        open_sources(["tune-pocket-quick"], labels="a,b")
    with pytest.raises(lmr.LmrError, match="nothing to choose from"):
        open_sources(["tune-pocket-quick"], over=["lr=1e-3"])
