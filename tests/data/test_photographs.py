"""The photographs that come with the package: what they are, where they come from, how they are corrupted."""

from __future__ import annotations

import numpy as np
import pytest

from lmr.data.catalogue import open_dataset
from lmr.data.photographs import Photographs
from real_data import FOLDER, needs


def test_there_are_200_of_each_class() -> None:
    photos = Photographs()
    assert len(photos.classes) == 10
    assert np.bincount(photos.labels("clean")).tolist() == [200] * 10
    images = photos.read("clean", 0, range(2000))
    assert {image.shape for image in images} == {(32, 32, 3)}
    assert len({image.tobytes() for image in images}) == 2000


@needs("cifar10_test.npz")
@pytest.mark.parametrize("corruption", ["gaussian_noise", "frost"])
def test_corrupted_photographs_are_those_of_the_whole_set(corruption: str) -> None:
    few, whole = open_dataset("photo-c"), open_dataset("cifar10-c", FOLDER)
    own = few.read(corruption, 5, range(5))
    same = whole.read(corruption, 5, Photographs().numbers[:5])
    np.testing.assert_array_equal(np.stack(own), np.stack(same))
