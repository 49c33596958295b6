"""Images to inputs of an image tower, without torchvision."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lmr.core.errors import LmrError, WrongType
from lmr.images.files import open_any, scale_to_8_bits

Channels = tuple[float, float, float]  # one number for each of red, green and blue
Interpolation = Literal["bicubic", "bilinear"]

# What the mean and the standard deviation of pixels from 0 to 1 may be. Models in use have deviations from 1/255 to 1;
# far smaller ones would turn every image into infinities.
MEANS, DEVIATIONS = (-1000.0, 1000.0), (0.001, 1000.0)

_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # PIL's codes, as transformers stores them
_STRIP = 64  # an image this many times longer than wide is cropped first, as resizing it could take gigabytes


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing a model was trained with; it belongs to the model and not to a dataset.

    ``resize="short"`` scales the short side to the resolution and crops the centre (CLIP); ``"squash"`` scales both
    sides, whatever the image's shape (SigLIP). Sizes, offsets and pixels are those of transformers' image processors,
    which use PIL. Every image is converted to RGB first.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> half = (0.5, 0.5, 0.5)
        >>> preprocessing = lmr.Preprocessing(224, mean=half, std=half, resize="squash")
        >>> preprocessing.prepare_image(Image.new("RGB", (640, 480), "white")).unique()
        tensor([1.])
    """

    resolution: int
    mean: Channels
    std: Channels
    resize: Literal["short", "squash"] = "short"
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        if not isinstance(self.resolution, int) or self.resolution < 1:
            raise LmrError(f"Expected the model's resolution as a positive whole number, got {self.resolution!r}.")
        for name, values, (low, high) in (("mean", self.mean, MEANS), ("std", self.std, DEVIATIONS)):
            if len(values) != 3 or not all(low <= value <= high for value in values):
                raise LmrError(f"Expected three numbers from {low:g} to {high:g} as {name}, got {values!r}.")
            object.__setattr__(self, name, tuple(map(float, values)))

    def __str__(self) -> str:
        edge = "short side" if self.resize == "short" else self.resize
        return f"{edge} to {self.resolution}, {self.interpolation}"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one prepared image."""
        return 3, self.resolution, self.resolution

    def prepare_image(self, image: Image.Image) -> Tensor:
        """Return a PIL image of any size and mode as float32 [3, resolution, resolution]."""
        check_image(image)
        x, y = self._trim(image.width, image.height)
        if x or y:
            image = image.crop((x, y, image.width - x, image.height - y))
        width, height = self._scale(image.width, image.height)
        image = convert_to_rgb(image)
        kind = Image.Resampling[self.interpolation.upper()]
        if image.height > _STRIP * image.width:  # PIL may widen a tall strip first, which could take gigabytes
            image = image.resize((image.width, height), kind)
        image = image.resize((width, height), kind)
        left, top = (width - self.resolution) // 2, (height - self.resolution) // 2
        if image.size != (self.resolution, self.resolution):
            image = image.crop((left, top, left + self.resolution, top + self.resolution))
        return self._normalise(image)

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        """The input for each of the 256 levels of a channel [3, 256]; small images take half the time with it."""
        levels = np.arange(256, dtype=np.float32) / np.float32(255)
        return np.stack([(levels - np.float32(m)) / np.float32(s) for m, s in zip(self.mean, self.std, strict=True)])

    def _trim(self, width: int, height: int) -> tuple[int, int]:
        """Return the columns and rows to crop at either end of a strip, whose centre alone is used."""
        if self.resize == "squash":
            return 0, 0
        longest = _STRIP * min(width, height)
        return max(0, width - longest) // 2, max(0, height - longest) // 2

    def _scale(self, width: int, height: int) -> tuple[int, int]:
        """Return the size after resizing; the long side is rounded down."""
        side = self.resolution
        if self.resize == "squash":
            return side, side
        long = int(side * max(width, height) / min(width, height))
        return (long, side) if width > height else (side, long)

    def _normalise(self, image: Image.Image) -> Tensor:
        """Return an RGB image as float32 [3, height, width]."""
        pixels = np.asarray(image)
        ready = np.empty((3, *pixels.shape[:2]), np.float32)
        for channel, levels in enumerate(self._levels):
            np.take(levels, pixels[..., channel], out=ready[channel], mode="clip")  # other modes make a copy first
        return torch.from_numpy(ready)


def check_image(image: object) -> None:
    """Refuse what is not a PIL image with pixels."""
    if not isinstance(image, Image.Image):
        raise WrongType(f"Expected a PIL image, got {type(image).__name__}.")
    if min(image.size) == 0:
        raise LmrError(f"Expected an image with pixels, got one of size {image.size}.")


def convert_to_rgb(image: Image.Image) -> Image.Image:
    """Convert to 8-bit RGB. 16 bits are scaled as in lmr.images; Pillow would clip all values above 255."""
    if image.mode.startswith(("I", "F")):
        try:
            image = scale_to_8_bits(image)
        except LmrError as error:
            raise LmrError(f"Cannot use the image of mode {image.mode!r}: {error}.") from error
    return image if image.mode == "RGB" else image.convert("RGB")


def read_image_processor(processor: Any, resolution: int) -> Preprocessing:
    """Return the preprocessing of an image processor of transformers for a model of this resolution."""
    given = processor.to_dict()
    missing = [step for step in ("do_resize", "do_rescale", "do_normalize") if not given.get(step)]
    square = {"height": resolution, "width": resolution}
    size, crop = given.get("size"), given.get("crop_size") if given.get("do_center_crop") else None
    short = size == {"shortest_edge": resolution} and crop == square
    fits = short or (size == square and crop in (None, square))
    if missing or not fits or given["resample"] not in _FILTERS or abs(given["rescale_factor"] * 255 - 1) > 1e-3:
        raise LmrError(
            f"Expected an image processor that scales the short side to {resolution} pixels, the model's resolution, "
            f"and crops the centre, or scales both sides to {resolution}, with a bilinear or bicubic filter, and then "
            f"scales and normalises pixels; got {type(processor).__name__} with size {size}, crop {crop}, resample "
            f"{given.get('resample')}, rescale_factor {given.get('rescale_factor')}"
            + (f", without {', '.join(missing)}." if missing else ".")
        )
    kind, mean, std = _FILTERS[given["resample"]], given["image_mean"], given["image_std"]
    return Preprocessing(resolution, mean, std, resize="short" if short else "squash", interpolation=kind)


OneImage = Image.Image | str | os.PathLike[str] | bytes | NDArray[np.uint8] | Tensor
Images = OneImage | Sequence[OneImage]


@dataclass(frozen=True)
class ImagePreprocess:
    """One image to [3, H, W]; a list or a tuple of images, of any sizes, to [N, 3, H, W].

    An image is a PIL image, the path of a file, the content of a file (bytes), or a uint8 array of NumPy or torch:
    [h, w, 3] in RGB, or [h, w] in grey. An array [N, h, w, 3] counts as a list. The same pixels give the same bits in
    every form. Files are opened as ``lmr predict`` does: upright, transparency on white, 16 bits scaled to 8. Of a PIL
    image transparency is dropped, and an EXIF rotation is not applied.
    """

    preprocessing: Preprocessing
    dtype: torch.dtype = torch.float32

    def __call__(self, images: Images) -> Tensor:
        """Return inputs of the model, on the CPU."""
        if isinstance(images, (np.ndarray, Tensor)) and images.ndim == 4:
            images = list(images)
        if not isinstance(images, (list, tuple)):
            return self._prepare(images)
        if not images:
            raise LmrError("Expected at least one image, got an empty list.")
        inputs = []
        for number, image in enumerate(images):
            try:
                inputs.append(self._prepare(image))
            except LmrError as error:
                raise type(error)(f"Image {number} of the list (the first is 0): {error}") from error
        return torch.stack(inputs)

    def _prepare(self, image: object) -> Tensor:
        return self.preprocessing.prepare_image(open_any(image)).to(self.dtype)
