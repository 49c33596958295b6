"""SigLIP 2 for images of any shape (NaFlex): the shape of an image decides its number of patches.

transformers passes three tensors to the tower: patches, a mask and the shape of the grid. Methods pass one tensor per
batch, so the patches carry two more columns of zeros and ones, which every type holds exactly: whether there is a patch
at all, and whether it is in the first row of the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.models.formats.configs import HALF, Settings, build, read_steps
from lmr.models.preprocessing import Preprocessing, check_image, convert_to_rgb

_COLUMNS = 2  # beside the pixels of a patch
_STEP = 1e-5  # to which transformers finds the scale of an image
# Of missing settings; from transformers.
_DEFAULTS = {"patch_size": 16, "max_num_patches": 256, "resample": 2, "image_mean": HALF, "image_std": HALF}


@dataclass(frozen=True)
class PatchPreprocessing(Preprocessing):
    """Scale an image to at most ``patches`` patches of ``patch`` pixels, about in its own shape, and cut it into these.

    The resolution is that of a square image.
    """

    patch: int = 16
    patches: int = 256

    def __str__(self) -> str:
        return f"at most {self.patches} patches of {self.patch} pixels, {self.interpolation}"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one prepared image: patches, and the pixels of a patch with two more columns."""
        return self.patches, 3 * self.patch**2 + _COLUMNS

    def prepare_image(self, image: Image.Image) -> Tensor:
        """Return a PIL image of any size and mode as float32 [patches, 3 * patch * patch + 2]."""
        check_image(image)
        rows, columns = fit_grid(image.height, image.width, self.patch, self.patches)
        size = (columns * self.patch, rows * self.patch)
        scaled = convert_to_rgb(image).resize(size, Image.Resampling[self.interpolation.upper()])
        cut = self._normalise(scaled).reshape(3, rows, self.patch, columns, self.patch)
        flat = cut.permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
        there, first = torch.ones(len(flat), 1), torch.zeros(len(flat), 1)
        first[:columns] = 1
        return F.pad(torch.cat([flat, there, first], 1), (0, 0, 0, self.patches - len(flat)))


def fit_grid(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """Return rows and columns of patches for an image of this size, by the same bisection as transformers."""

    def count(scale: float) -> tuple[int, int]:
        rows, columns = (max(1, math.ceil(side * scale / patch)) for side in (height, width))
        return rows, columns

    low, high = _STEP / 10, 100.0
    while high - low >= _STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if math.prod(count(middle)) <= most else (low, middle)
    return count(low)


def unpack(images: Tensor) -> dict[str, Tensor]:
    """Return packed patches as the three tensors that transformers' tower takes."""
    patches, there, first = images[..., :-_COLUMNS], images[..., -2] > 0.5, images[..., -1] > 0.5
    count, columns = there.sum(1), first.sum(1)
    rows = count // columns.clamp(min=1)
    places = torch.arange(there.shape[1], device=images.device)
    packed = (there == (places < count[:, None])) & (first == (places < columns[:, None]))
    if not bool((packed.all(1) & (rows * columns == count) & (rows > 0)).all()):
        raise LmrError("Expected images as this model's preprocess packs them, got patches without a grid.")
    shapes = torch.stack([rows, columns], 1)
    return {"pixel_values": patches, "pixel_attention_mask": there.int(), "spatial_shapes": shapes}


def parse_patch_preprocessing(settings: Any, where: str, patch: int) -> PatchPreprocessing:
    """Return the preprocessing of a Siglip2ImageProcessor of transformers; missing settings have its defaults."""
    processor = Settings(settings, where, "preprocessing")
    processor.values = values = _DEFAULTS | {key: value for key, value in settings.items() if value is not None}
    processor.known = {"patch_size", "max_num_patches"}
    steps, patches = read_steps(processor), values["max_num_patches"]
    if values["patch_size"] != patch:
        raise LmrError(f"Expected patches of the model's {patch} pixels in {where}, got {values['patch_size']!r}.")
    if not isinstance(patches, int) or patches < 1:
        raise LmrError(f"Expected a number of patches as max_num_patches in {where}, got {patches!r}.")
    sizes = {"resolution": patch * math.isqrt(patches), "patch": patch, "patches": patches}
    return build(PatchPreprocessing, where, resize="squash", **sizes, **steps)
