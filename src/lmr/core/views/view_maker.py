"""ViewMaker: the views of one image, the same whenever the image has the same number in its stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.pixel_scale import PixelScale
from lmr.core.state import move_together
from lmr.core.views.augmix import draw_recipe, mix_chains
from lmr.core.views.crops import draw_crops, place_crops, sample_grid


@dataclass(frozen=True)
class ViewMaker:
    """Random crops and flips of an image, and AugMix of them where ``mixed``.

    The draws depend on ``seed`` and on the number of the image in its stream, and on nothing else: not on the batch,
    on other images, on the device or on torch's global generator. Images are what the model sees, at its resolution;
    views cut from a larger original can be given to ``Method.step`` instead.

    Examples:
        >>> import lmr, torch
        >>> maker = lmr.ViewMaker(seed=0)
        >>> image = torch.randn(3, 32, 32)
        >>> views = maker.make(image, number=5, count=8)
        >>> views.shape, torch.equal(views, maker.make(image, number=5, count=8))
        (torch.Size([8, 3, 32, 32]), True)
    """

    seed: int = 0
    mixed: bool = False
    scale: PixelScale | None = None  # of the images; needed by AugMix
    fill: tuple[float, ...] = (0.0, 0.0, 0.0)  # the colour, from 0 to 255, of places that AugMix uncovers

    def make(self, image: Tensor, number: int, count: int) -> Tensor:
        """``count`` views [count, ...] of an image [..., H, W], without the image itself."""
        return next(self.make_each(image.unsqueeze(0), [number], count))

    def make_each(self, images: Tensor, numbers: Sequence[int], count: int) -> Iterator[Tensor]:
        """Yield ``count`` views of each of the images [B, ..., H, W]; the crops of all are drawn at first."""
        flat = images.reshape(len(images), -1, *images.shape[-2:])
        generators = [seed_generator(self.seed, number) for number in numbers]
        drawn = [place_crops(draw_crops(own, count, *flat.shape[-2:]), images) for own in generators]
        points = move_together({key: torch.stack([own[key] for own in drawn]) for key in ("x", "y")}, images.device)
        for image, generator, x, y in zip(flat, generators, points["x"], points["y"], strict=True):
            views = sample_grid(image.expand(count, *image.shape), x, y)
            if self.mixed:
                views = self._mix(views, generator)
            yield views.view(count, *images.shape[1:])

    def _mix(self, views: Tensor, generator: torch.Generator) -> Tensor:
        if self.scale is None:
            raise LmrError(
                "AugMix works on pixel values, and this classifier does not know how its images are scaled; give "
                "ZeroShot a pixels=PixelScale(mean, std), or give views of your own as [B, V, ...]."
            )
        colours = self.fill if len(self.fill) == views.shape[1] else self.fill[:1] * views.shape[1]
        pixels = mix_chains(self.scale.to_pixels(views), draw_recipe(generator, len(views)), colours)
        return self.scale.from_pixels(pixels)


def seed_generator(seed: int, number: int) -> torch.Generator:
    """Return a generator on the CPU for the image of this number in its stream: the same on every machine."""
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
