"""The function of every corruption. To add one, add its function, a line here, its constants and its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from lmr.data.corruptions.blur import blur_by_gauss, blur_by_motion, blur_by_zoom, blur_through_glass, defocus
from lmr.data.corruptions.colour import brighten, saturate
from lmr.data.corruptions.digital import compress, lower_contrast, pixelate, stretch
from lmr.data.corruptions.noise import add_gaussian_noise, add_impulse_noise, add_shot_noise, add_speckle_noise
from lmr.data.corruptions.spatter import add_spatter
from lmr.data.corruptions.weather import add_fog, add_frost, add_snow

FUNCTIONS: dict[str, Callable[..., npt.NDArray[Any]]] = {
    "gaussian_noise": add_gaussian_noise,
    "shot_noise": add_shot_noise,
    "impulse_noise": add_impulse_noise,
    "defocus_blur": defocus,
    "glass_blur": blur_through_glass,
    "motion_blur": blur_by_motion,
    "zoom_blur": blur_by_zoom,
    "snow": add_snow,
    "frost": add_frost,
    "fog": add_fog,
    "brightness": brighten,
    "contrast": lower_contrast,
    "elastic_transform": stretch,
    "pixelate": pixelate,
    "jpeg_compression": compress,
    "speckle_noise": add_speckle_noise,
    "gaussian_blur": blur_by_gauss,
    "spatter": add_spatter,
    "saturate": saturate,
}
