"""Models and datasets that a user's file or package makes: found, hashed by content, run and reported."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmr
from lmr.bench import inputs
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.run import run_task
from lmr.core import registry
from lmr.data.catalogue import open_dataset
from lmr.data.corruptions import CORRUPTIONS
from lmr.data.dataset import ArraySet
from lmr.report.report import make_leaderboard, make_report
from row_maker import write_runs

CODE = """
import numpy as np
import torch
from torch import nn
import lmr
from lmr.data.dataset import ArraySet, CorruptedOnTheFly

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.eye(2, 6))

    def forward(self, texts):
        return self.rows[[int("ship" in text) for text in texts]]

def load():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 1)
    encoder = nn.Sequential(nn.Flatten(2), nn.Linear(64, 6), blocks, nn.Flatten(), nn.Linear(18, 6))
    half = (0.5, 0.5, 0.5)
    return lmr.wrap_module(encoder, Words(), lmr.Preprocessing(8, half, half), logit_scale=10)

def flowers():
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    return CorruptedOnTheFly("flowers", ArraySet("clean", images, [0, 1] * 10, ["cat", "ship"]), "cifar")

def nothing():
    return 3
"""


@pytest.fixture
def mine(tmp_path: Path, own_methods: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    forget()
    file = tmp_path / "code" / "mine.py"
    file.parent.mkdir()
    file.write_text(CODE)
    monkeypatch.chdir(file.parent)
    return file


def forget() -> None:
    """As another process, which has opened nothing."""
    for function in (inputs.find_dataset, inputs.load_backbone, inputs.describe_backbone, inputs.is_small_model):
        function.cache_clear()
    inputs.load_classifier.cache_clear()


def make_tasks(folder: Path, **changes: Any) -> list[Task]:
    table = {"methods": ["zeroshot", "lmr"], "datasets": "./mine.py:flowers", "backbones": "./mine.py:load"}
    table |= {"corruptions": "fog", "batch_sizes": 4}
    return list_tasks([parse_plan("test", "", folder, table | changes)])


def test_a_bench_runs_and_reports_both(mine: Path, tmp_path: Path) -> None:
    tasks = make_tasks(mine.parent)
    rows = [run_task(task, tmp_path / "runs") for task in tasks]
    assert [row.backbone["name"] for row in rows] == [f"{mine}:load"] * 2
    assert [row.dataset for row in rows] == [f"{mine}:flowers"] * 2
    assert rows[1].metrics["trainable"] == 24  # two norms of six weights and six biases
    assert rows[1].metrics["drift"] > 0
    write_runs(tmp_path / "runs", rows, samples=False)
    titles = [table.title for table in make_report([tmp_path / "runs"], tmp_path / "report", figures=False).tables]
    assert any("mine.py:flowers, mine.py:load" in title for title in titles)
    assert make_leaderboard([tmp_path / "runs"], tmp_path / "board").tables


def test_the_hash_follows_the_content_and_not_the_place(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_tasks(mine.parent)
    mine.write_text(CODE + "# a comment\n")
    forget()
    after = make_tasks(mine.parent)
    assert not {task.run for task in before} & {task.run for task in after}
    with pytest.raises(lmr.LmrError, match="changed"):
        run_task(before[0], mine.parent)
    elsewhere = mine.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text(CODE)
    monkeypatch.chdir(elsewhere)
    forget()
    assert [task.run for task in make_tasks(Path())] == [task.run for task in before]


def test_a_plan_names_files_beside_it(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (task, _) = make_tasks(mine.parent)
    assert (task.backbone, task.dataset) == (f"{mine}:load", f"{mine}:flowers")
    assert f"--backbones {mine}:load" in task.command


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"backbones": "./mine.py:nothing"}, "Expected a Backbone"),
        ({"datasets": "./mine.py:nothing"}, "Expected a Dataset"),
        ({"backbones": "./mine.py:gone"}, "no function 'gone'"),
        ({"datasets": "./gone.py:flowers"}, "Cannot read the method file"),
    ],
)
def test_what_is_neither_gets_a_sentence(mine: Path, what: dict[str, str], words: str) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        make_tasks(mine.parent, **what)


def test_packages_register_models_and_datasets(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, dataset = lmr.load("./mine.py:load"), open_dataset("./mine.py:flowers")
    made = {("lmr.models", "theirs"): lambda: backbone, ("lmr.data", "roses"): lambda: dataset}

    def list_points(group: str, name: str | None = None) -> list[Any]:
        return [SimpleNamespace(load=lambda: made[group, name])] if (group, name) in made else []

    monkeypatch.setattr(registry.metadata, "entry_points", list_points)
    assert lmr.load("theirs").name == "theirs"
    assert open_dataset("roses").domains == CORRUPTIONS
    assert open_dataset("roses@cat+ship").name == "roses@cat+ship"
    with pytest.raises(lmr.LmrError, match="There is no dataset 'tulips'"):
        open_dataset("tulips")
    with pytest.raises(lmr.LmrError, match="There is no model 'tulips'"):
        lmr.load("tulips")


def test_images_of_ones_own_are_corrupted_as_those_of_imagenet(tmp_path: Path) -> None:
    for name in ("cat", "ship"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (300, 260), "navy").save(tmp_path / "photos" / name / "a.png")
    (tmp_path / "photos.csv").write_text("path,label\nphotos/cat/a.png,cat\nphotos/ship/a.png,ship\n")
    plain = open_dataset(f"folder:{tmp_path / 'photos'}")
    for name in (f"folder-c:{tmp_path / 'photos'}", f"csv-c:{tmp_path / 'photos.csv'}"):
        dataset = open_dataset(name)
        assert (dataset.domains, dataset.classes) == (CORRUPTIONS, ("cat", "ship"))
        assert dataset.digest != plain.digest
        image, clean = dataset.read("gaussian_noise", 5, [1])[0], dataset.read("clean", 0, [1])[0]
        assert image.shape == clean.shape == (224, 224, 3)
        assert image[..., 0].std() > clean[..., 0].std() + 10
        assert "made by lmr" in dataset.protocol["corruptions"]


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), [0, 1], "uint8 images"),
        (np.zeros((2, 4, 4, 3), np.uint8), [0], "for 1 labels"),
        (np.zeros((2, 4, 4, 3), np.uint8), [0, 2], "labels from 0 to 1"),
    ],
)
def test_arrays_that_are_no_dataset_get_a_sentence(images: np.ndarray, labels: list[int], words: str) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        ArraySet("mine", images, labels, ["cat", "ship"])
