"""The strong augmentations of RoTTA (Yuan et al. 2023) and ROID (Marsden et al. 2024) on pixel values from 0 to 1.

In this order: brightness, contrast, saturation, hue and gamma in random order; rotation, translation and scaling; blur;
a flip; noise. ROID has neither blur nor noise. Beyond its edge the image is continued by the edge (RoTTA) or mirrored
(ROID). As in the authors' code one draw serves all images of a call, except for the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.log import LOGGER
from lmr.core.pixel_scale import PixelScale
from lmr.core.views.crops import sample_bilinear
from lmr.core.views.view_maker import seed_generator

BRIGHTNESS, CONTRAST, SATURATION = (0.6, 1.4), (0.7, 1.3), (0.5, 1.5)
HUE, GAMMA = (-0.06, 0.06), (0.7, 1.3)
DEGREES, SCALE = (-15.0, 15.0), (0.9, 1.1)
TRANSLATION = 1 / 16  # share of an image padded by half its size
KERNEL, SIGMA = 5, (0.001, 0.5)
NOISE = 0.005
_GREY = (0.2989, 0.587, 0.114)


@dataclass
class Jitter:
    """The augmentation of preprocessed RGB images, drawn from ``seed`` and a number; other inputs stay as they are.

    Where the inputs are no RGB images of a known scale, a warning in the name of ``method`` says once that they stay.
    """

    method: str
    seed: int
    scale: PixelScale | None
    augment: Callable[[Tensor, torch.Generator], Tensor]  # ``jitter`` or ``jitter_mirrored``
    warned: bool = False

    def __call__(self, images: Tensor, number: int) -> Tensor:
        """Return augmented images [N, 3, H, W]."""
        if self.scale is None or images.ndim != 4 or images.shape[1] != 3:
            if not self.warned:
                LOGGER.warning(
                    "%s does not augment: the classifier's inputs are not RGB images of a known scale.", self.method
                )
            self.warned = True
            return images
        shares = self.augment(self.scale.to_shares(images), seed_generator(self.seed, number))
        return self.scale.from_pixels(255 * shares)


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """RoTTA's augmented images [N, 3, H, W] from images with values from 0 to 1; all draws are from ``generator``."""
    x = _change_colours(images, generator)
    x = move(x, *_draw_motion(x, generator), KERNEL // 2)
    x = _flip_half(blur(x, _draw(generator, *SIGMA)), generator)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return (x + NOISE * noise.to(x.device, x.dtype)).clamp(0, 1)


def jitter_mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """ROID's augmented images [N, 3, H, W] from images with values from 0 to 1; all draws are from ``generator``."""
    x = _change_colours(images, generator)
    return _flip_half(move(x, *_draw_motion(x, generator), mirrored=True), generator).clamp(0, 1)


def _draw(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _change_colours(x: Tensor, generator: torch.Generator) -> Tensor:
    for number in torch.randperm(5, generator=generator).tolist():
        adjust, span = (
            (change_brightness, BRIGHTNESS),
            (change_contrast, CONTRAST),
            (change_saturation, SATURATION),
            (turn_hue, HUE),
            (change_gamma, GAMMA),
        )[number]
        x = adjust(x, _draw(generator, *span))
    return x


def _draw_motion(x: Tensor, generator: torch.Generator) -> tuple[float, int, int, float]:
    """Return an angle, shifts to the right and down, and a scale; shifts are shares of an image that was padded."""
    angle, size = _draw(generator, *DEGREES), [side + 2 * (side // 2) for side in x.shape[-2:]]
    down, right = (round(_draw(generator, -TRANSLATION * side, TRANSLATION * side)) for side in size)
    return angle, right, down, _draw(generator, *SCALE)


def _flip_half(x: Tensor, generator: torch.Generator) -> Tensor:
    return x.flip(-1) if _draw(generator, 0, 1) < 0.5 else x


def change_brightness(x: Tensor, factor: float) -> Tensor:
    """Mixed with black."""
    return (factor * x).clamp(0, 1)


def change_contrast(x: Tensor, factor: float) -> Tensor:
    """Mixed with the mean grey of each image."""
    return (factor * x + (1 - factor) * _to_grey(x).mean((-3, -2, -1), keepdim=True)).clamp(0, 1)


def change_saturation(x: Tensor, factor: float) -> Tensor:
    """Mixed with the grey of each pixel."""
    return (factor * x + (1 - factor) * _to_grey(x)).clamp(0, 1)


def change_gamma(x: Tensor, gamma: float) -> Tensor:
    """Every value to this power."""
    return (x**gamma).clamp(0, 1)


def turn_hue(x: Tensor, share: float) -> Tensor:
    """Turn the hue of every pixel by this share of the whole circle; brightness and saturation stay."""
    top, low = x.amax(-3, keepdim=True), x.amin(-3, keepdim=True)
    span = top - low
    red, green, blue = ((top - part) / span.where(span > 0, 1) for part in torch.split(x, 1, -3))
    hue = torch.where(x[:, :1] == top, blue - green, torch.where(x[:, 1:2] == top, 2 + red - blue, 4 + green - red))
    hue = torch.where(span > 0, hue / 6 + share, 0).remainder(1)
    # Each channel is a trapezium over the circle: it falls from the top to the lowest value and rises again.
    distance = [(6 * hue + shift).remainder(6) for shift in (5, 3, 1)]
    return torch.cat([top - span * torch.minimum(d, 4 - d).clamp(0, 1) for d in distance], -3)


def move(
    x: Tensor, degrees: float, right: int, down: int, scale: float, border: int = 0, mirrored: bool = False
) -> Tensor:
    """Images turned about their centre, scaled and shifted, with ``border`` more pixels on each side.

    Beyond the edge is what the edge has, or (``mirrored``) the image once more, mirrored about its first or last pixel.
    """
    height, width = x.shape[-2:]
    rows = torch.arange(-border, height + border, dtype=torch.float64).view(1, -1, 1) - (height - 1) / 2 - down
    columns = torch.arange(-border, width + border, dtype=torch.float64).view(1, 1, -1) - (width - 1) / 2 - right
    cosine, sine = (f(math.radians(degrees)) / scale for f in (math.cos, math.sin))
    across = (cosine * columns + sine * rows + (width - 1) / 2).expand(len(x), -1, -1)
    along = (cosine * rows - sine * columns + (height - 1) / 2).expand(len(x), -1, -1)
    if mirrored:
        across, along = _mirror(across, width), _mirror(along, height)
    return sample_bilinear(x, across, along)


def _mirror(points: Tensor, side: int) -> Tensor:
    """Points in pixels, those beyond the first and last pixel of a side mirrored about it."""
    last = max(side - 1, 1)
    wave = points.remainder(2 * last)
    return torch.minimum(wave, 2 * last - wave).clamp(max=side - 1)


def blur(x: Tensor, sigma: float) -> Tensor:
    """Blur by a Gaussian; the result is smaller by the border that the kernel needs."""
    reach = torch.arange(KERNEL, dtype=torch.float64) - KERNEL // 2
    weights = torch.exp(-0.5 * (reach / sigma) ** 2)
    kernel = (weights / weights.sum()).to(x.device, x.dtype)
    flat = x.flatten(0, 1).unsqueeze(1)
    flat = F.conv2d(F.conv2d(flat, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))
    return flat.view(*x.shape[:2], *flat.shape[-2:])


def _to_grey(x: Tensor) -> Tensor:
    red, green, blue = torch.split(x, 1, -3)
    grey: Tensor = _GREY[0] * red + _GREY[1] * green + _GREY[2] * blue
    return grey
