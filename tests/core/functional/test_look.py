"""How images look: ordinary photographs have no word, and strong corruptions the right one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import lmr
from lmr.core.functional.look import EMPTY, describe_look, judge_look, measure_look
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs


def judge(images: NDArray[np.uint8] | NDArray[np.float64]) -> list[int]:
    pixels = torch.from_numpy(np.asarray(images)).permute(0, 3, 1, 2).double() / 255
    return judge_look(measure_look(pixels), pixels.shape[-1])


def describe(*folders: NDArray[np.uint8] | NDArray[np.float64], ordered: bool = True) -> list[str]:
    looks = [bits for images in folders for bits in judge(images)]
    return [str(one) for one in describe_look(looks, ordered=ordered)]


@pytest.fixture(scope="module")
def photographs() -> NDArray[np.uint8]:
    return np.stack(Photographs().read(CLEAN, 0, range(1, 128, 2)))


def test_ordinary_photographs_have_no_word(photographs: NDArray[np.uint8]) -> None:
    assert describe(photographs) == []
    assert describe(photographs[:7]) == []  # too few
    assert describe(photographs[:, :20, :20]) == []  # too small


@pytest.mark.parametrize(
    ("corruption", "word"),
    [("shot_noise", "noisy"), ("zoom_blur", "blurred"), ("contrast", "washed out"), ("brightness", "washed out")],
)
def test_strong_corruptions_have_their_word(photographs: NDArray[np.uint8], corruption: str, word: str) -> None:
    assert describe(lmr.corrupt(photographs, corruption, 5, constants="cifar")) == [word]


def test_dark_images_are_dark_and_not_washed_out(photographs: NDArray[np.uint8]) -> None:
    assert describe(photographs * 0.15) == ["dark"]


def test_bad_images_among_good_ones_are_found_where_they_are(photographs: NDArray[np.uint8]) -> None:
    noisy, blurred = (lmr.corrupt(photographs, kind, 3, constants="cifar") for kind in ("gaussian_noise", "zoom_blur"))
    assert describe(photographs, noisy) == ["noisy from about image 65 on"]
    assert describe(noisy, photographs) == ["noisy up to about image 64"]
    assert describe(photographs, photographs, noisy, photographs) == ["noisy from about image 129 to 192"]
    parts = describe(noisy, blurred, photographs)
    assert [one.split(" about")[0] for one in parts] == ["noisy up to", "blurred from"]
    mixed = np.stack([noisy, photographs, photographs], 1).reshape(-1, *noisy.shape[1:])
    assert describe(mixed) == ["in part noisy (35 %)"]
    assert describe(photographs, noisy, ordered=False) == ["in part noisy (52 %)"]


def test_what_is_no_picture_has_no_other_word(photographs: NDArray[np.uint8]) -> None:
    empty = np.concatenate([photographs[:32] * 0, photographs[:32] * 0 + 130])
    assert set(judge(empty)) == {EMPTY}
    assert describe(empty) == []
    assert describe(empty[:16], photographs) == []


def test_numbers_are_those_of_a_plain_computation() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(3, 3, 32, 32, generator=generator, dtype=torch.float64)
    assert torch.allclose(measure_look(pixels).double(), torch.stack([compute(one) for one in pixels]), atol=1e-5)


def compute(pixels: Tensor) -> Tensor:
    grey = pixels.mean(0).numpy()
    noise = 0.0
    for i in range(1, 31):
        for j in range(1, 31):
            around = grey[i - 1, j] + grey[i + 1, j] + grey[i, j - 1] + grey[i, j + 1]
            corners = grey[i - 1, j - 1] + grey[i - 1, j + 1] + grey[i + 1, j - 1] + grey[i + 1, j + 1]
            noise += abs(4 * grey[i, j] - 2 * around + corners)
    coarse = grey.reshape(16, 2, 16, 2).mean((1, 3))

    def gradient(plane: NDArray[np.float64]) -> float:
        return float(np.sqrt((np.diff(plane, axis=0) ** 2).mean() + (np.diff(plane, axis=1) ** 2).mean()))

    fine = gradient(grey)
    ratio = np.log((fine + 1e-4) / (gradient(coarse) + 1e-4))
    sigma = noise / 900 * np.sqrt(np.pi / 2) / 6
    numbers = [grey.mean(), np.sort(grey.flatten())[19], sigma, fine, ratio, grey.std(ddof=1)]
    return torch.tensor(numbers, dtype=torch.float64)
