"""Preprocessed images to pixel values and back."""

from __future__ import annotations

import torch

import lmr


def test_every_pixel_value_survives_the_round_trip() -> None:
    backbone = lmr.load("photo")
    pixels = torch.arange(256).to(torch.uint8).repeat(4).view(1, 32, 32, 1).expand(-1, -1, -1, 3).contiguous()
    clip = backbone.classifier(["cat", "ship"])
    assert clip.pixels is not None
    images = backbone.preprocess(pixels)
    assert torch.equal(clip.pixels.to_pixels(images), pixels.permute(0, 3, 1, 2).float())
    torch.testing.assert_close(clip.pixels.from_pixels(clip.pixels.to_pixels(images)), images)
