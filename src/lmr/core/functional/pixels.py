"""Pixel statistics of images, which tell domains such as fog and noise apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# The variance of each pixel statistic between clean images (CIFAR-10's test set; 250 photographs of ImageNet at 224
# pixels give values from 0.7 to 3 times these).
VARIANCES = (0.25, 0.08, 0.14, 0.48, 0.15, 0.035, 0.032, 1.7, 0.27)


def describe_pixels(images: Tensor) -> Tensor:
    """Return nine numbers [B, 9] on the light, colour, contrast and detail of normalised images [B, 3, H, W].

    Grey is the mean of the channels. The colour differences are red - green and (red + green) / 2 - blue. The numbers
    are the means of these three, and the logarithms of six ratios: the variance of grey; roughness of grey in squares
    of 2 x 2 pixels against that variance; roughness of grey against this; its squared Laplacian against this; the
    variance of both colour differences against that of grey; roughness of red - green against its variance. Roughness
    is the mean square difference of neighbours in a row plus that in a column. 1e-5 is added before each logarithm.
    Images of other shapes are grey, with all but the last two axes averaged.
    """
    pixels = images if images.dtype == torch.float64 else images.float()
    pixels = pixels.reshape(len(pixels), -1, *(1, *pixels.shape[1:])[-2:])
    grey = pixels.mean(1)
    red, green, blue = pixels.unbind(1) if pixels.shape[1] == 3 else (grey,) * 3
    first, second = red - green, (red + green) / 2 - blue
    coarse = F.avg_pool2d(grey.unsqueeze(1), 2, ceil_mode=True).squeeze(1)
    powers = [_spread(grey), _roughness(coarse), _roughness(grey), _squared_laplacian(grey)]
    powers += [_spread(first) + _spread(second), _spread(first), _roughness(first)]
    variance, rough, fine, finest, colour, red_green, detail = torch.stack(powers).add(1e-5).log()
    means = [plane.mean((1, 2)) for plane in (grey, first, second)]
    ratios = [variance, rough - variance, fine - rough, finest - fine, colour - variance, detail - red_green]
    return torch.stack([*means, *ratios], 1)


def _spread(planes: Tensor) -> Tensor:
    return planes.flatten(1).var(1, correction=0)


def _roughness(planes: Tensor) -> Tensor:
    """Return the mean square difference of neighbours in rows, plus that in columns [B]."""
    return _mean_square(planes[:, :, 1:] - planes[:, :, :-1]) + _mean_square(planes[:, 1:] - planes[:, :-1])


def _squared_laplacian(planes: Tensor) -> Tensor:
    """Return the mean square of four times a pixel less its four neighbours, over pixels that have all four [B]."""
    rows, columns = planes[:, :, 1:-1], planes[:, 1:-1]
    around = rows[:, :-2] + rows[:, 2:] + columns[:, :, :-2] + columns[:, :, 2:]
    return _mean_square(4 * planes[:, 1:-1, 1:-1] - around)


def _mean_square(parts: Tensor) -> Tensor:
    """Return the mean square of parts [B, ...]; 0 where an image is too small to have any [B]."""
    return parts.square().flatten(1).sum(1) / max(1, parts[0].numel())
