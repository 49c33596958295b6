"""What the experiment counts; the method itself has its own tests."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from lab.wake import Remembered, count_wakes, main


def test_images_are_encoded_once() -> None:
    seen = []

    class Encoder(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(len(images))
            return images.flatten(1)

    encoder, images = Remembered(Encoder()), torch.randn(3, 3, 2, 2)
    for rows in ([0, 1], [1, 2], [2, 0]):
        assert torch.equal(encoder(images[rows]), images[rows].flatten(1))
    assert seen == [2, 1]


def test_a_stream_that_is_drifted_still_has_not_begun_again() -> None:
    phases = ["quiet", "adapting", "looking", "adapting", "looking", "quiet", "quiet", "adapting"]
    assert count_wakes(phases) == [16, 64]
    assert count_wakes(["quiet"] * 3) == []


@pytest.mark.usefixtures("real_models")
@pytest.mark.parametrize(
    "options", [["--corruptions", "gaussian_noise", "--bad", "40"], ["--quiet", "shuffle", "--images", "40"]]
)
def test_table(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    assert main(["--data", "photo-c", "--images", "80", "--seeds", "3", *options]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith(("| gaussian_noise | 1 | ", "| shuffle | 1 | 40 | 0.00"))


@pytest.mark.usefixtures("real_models")
def test_second_pass_gains(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    words = ["--data", "photo-c", "--corruptions", "gaussian_noise", "--order", "skew", "--seeds", "3"]
    assert main([*words, "--passes", "--images", "96", "--bad", "96"]) == 0
    frozen, _, second = [float(cell) for cell in re.findall(r"([\d.]+)%", capsys.readouterr().out)]
    assert second > frozen
