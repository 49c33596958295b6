"""Trials of the watch: streams are what they are called, and the numbers of the table are in their columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.watch_trials import KINDS, TRIALS, main, show
from lmr import LmrError, create
from lmr.data.dataset import Dataset, ImageArray
from pocket import load_pocket

pytestmark = pytest.mark.usefixtures("tiny_models")


class Plates(Dataset):
    """Forty plain images of four classes; the red value is the class, the green one the corruption."""

    name, classes, domains = "plates", ("a", "b", "c", "d"), ("fog", "gaussian_noise")
    digest = "0"

    def labels(self, domain: str) -> NDArray[np.int64]:
        return np.arange(40) % 4

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        return [np.full((2, 2, 3), (k % 4, self.domains.index(domain), 0), np.uint8) for k in indices]


def test_streams_are_what_they_are_called() -> None:
    def watch(kind: str) -> tuple[list[set[int]], list[set[int]]]:
        batches = list(show(Plates(), kind, 200, 8, 1, "fog"))
        assert all(b.images.shape == (8, 2, 2, 3) for b in batches)
        for batch in batches:
            shown = batch.labels >= 0
            assert (batch.images[shown][:, 0, 0, 0] == batch.labels[shown]).all()
        return [set(b.labels.tolist()) for b in batches], [set(b.images[..., 1].flatten().tolist()) for b in batches]

    labels, greens = watch("steady")
    assert set.union(*labels) == {0, 1, 2, 3}
    assert set.union(*greens) == {0}
    labels, _ = watch("one class")
    assert len(set.union(*labels[:100])) == 1
    assert len(set.union(*labels[100:])) == 4
    labels, _ = watch("runs")
    assert {len(set.union(*labels[k : k + 50])) for k in range(0, 200, 50)} == {1}
    _, greens = watch("change")
    assert (set.union(*greens[:100]), set.union(*greens[100:])) == ({0}, {1})
    batches = show(Plates(), "majority", 200, 8, 1, "fog", dominant=2)
    shares = np.bincount(np.concatenate([batch.labels for batch in batches])) / 1600
    assert shares[2] == pytest.approx(0.8, abs=0.04)
    labels, greens = watch("noise")
    assert set.union(*labels[50:100]) == {-1}
    assert -1 not in set.union(*labels[:50], *labels[100:])
    with pytest.raises(LmrError, match="no class 4"):
        next(show(Plates(), "majority", 2, 2, 1, "fog", dominant=4))


def test_trials_have_known_kinds_and_the_values_for_the_number_of_classes() -> None:
    clip = load_pocket().classifier(["red star", "blue ring"])
    assert {trial.kind for trial in TRIALS} == set(KINDS)
    for trial in TRIALS:
        method = create(trial.method, clip)
        suited = method.choose_values(clip.classes)
        assert {key: getattr(method, key) for key in suited} == suited


def test_command_prints_a_row_and_writes_the_signals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["steady", "--steps", "3", "--batch-size", "4", "--traces", str(tmp_path / "signals")]
    assert main(words) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.startswith("| steady")
    with open(tmp_path / "signals" / "steady.csv", newline="", encoding="utf-8") as file:
        steps = list(csv.DictReader(file))
    assert [step["step"] for step in steps] == ["1", "2", "3"]
    assert {step["health"] for step in steps} == {"ok"}
    assert main(["stormy"]) == 2
