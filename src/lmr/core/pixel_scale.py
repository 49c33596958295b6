"""Preprocessed images to pixel values and back, for augmentations that are defined on pixel values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmr.core.errors import LmrError


@dataclass(frozen=True)
class PixelScale:
    """The scaling of pixels in a model's preprocessing: ``(pixel / 255 - mean) / std``, for every channel.

    Methods see preprocessed images only. Cropping, flipping and averaging give the same before and after this scaling;
    an augmentation that reads the values themselves (AugMix) needs it undone.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def to_pixels(self, images: Tensor) -> Tensor:
        """Whole numbers from 0 to 255 in the type of ``images`` [..., C, H, W]."""
        mean, std = self._spread(images)
        return (255 * (images * std + mean)).round().clamp(0, 255)

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Preprocessed images from values [..., C, H, W] from 0 to 255."""
        mean, std = self._spread(pixels)
        return (pixels / 255 - mean) / std

    def to_shares(self, images: Tensor) -> Tensor:
        """Pixel values as shares of 255, from 0 to 1 and not rounded, of preprocessed ``images`` [..., C, H, W]."""
        mean, std = self._spread(images)
        return (images * std + mean).clamp(0, 1)

    def _spread(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if images.shape[-3] != len(self.mean):
            raise LmrError(f"Expected images of {len(self.mean)} channels, got {images.shape[-3]}.")
        mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return mean, std
