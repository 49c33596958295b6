"""The files of the photographs that come with the package: the fixed choice, packed without loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab import photographs as lab
from lmr.data import cifar
from lmr.data.photographs import FACTS, SHEET, Photographs, unpack_sheet
from real_data import FOLDER, needs


@needs("cifar10_test.npz")
def test_they_are_the_fixed_choice_from_the_official_test_set() -> None:
    photos = Photographs()
    with np.load(FOLDER / "cifar10_test.npz") as file:
        images, labels = file["images"], file["labels"]
    numbers = list(photos.numbers)
    assert numbers == lab.choose_numbers(labels).tolist()
    np.testing.assert_array_equal(np.stack(photos.read("clean", 0, range(2000))), images[numbers])
    np.testing.assert_array_equal(photos.labels("clean"), labels[numbers])


def test_command_writes_the_same_choice_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "PER_CLASS", 5)
    monkeypatch.setattr(cifar, "COUNT", 100)
    images = np.zeros((100, 32, 32, 3), np.uint8)
    images[:, ::8, ::8] = np.random.default_rng(1).integers(0, 256, (100, 4, 4, 3), dtype=np.uint8)
    labels = np.arange(100) % 10
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels)
    assert lab.main([str(tmp_path), "--root", str(tmp_path)]) == 0
    facts = json.loads((tmp_path / FACTS.name).read_text("utf-8"))
    assert facts["numbers"] == sorted(facts["numbers"]) == lab.choose_numbers(labels).tolist()
    assert np.bincount(facts["labels"]).tolist() == [5] * 10
    np.testing.assert_array_equal(unpack_sheet((tmp_path / SHEET.name).read_bytes(), 50), images[facts["numbers"]])


def test_missing_test_set_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.main([str(tmp_path), "--root", str(tmp_path)]) == 2
    assert "lmr fetch cifar10" in capsys.readouterr().err
