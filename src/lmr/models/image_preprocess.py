"""Images in any form to inputs of a model: a small object that workers of a DataLoader can be given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.images.image_files import decode_image, open_image
from lmr.models.preprocessing import Preprocessing

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
        """Inputs of the model, on the CPU."""
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
        return self.preprocessing.prepare_image(_open_any(image)).to(self.dtype)


def _open_any(image: object) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, (str, os.PathLike)):
        return open_image(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return decode_image(bytes(image))
    if isinstance(image, (np.ndarray, Tensor)):
        return _open_array(image)
    raise LmrError(
        "Expected a PIL image, the path of an image file, the content of one as bytes, a uint8 array [h, w, 3], or a "
        f"list of these; got {type(image).__name__}."
    )


def _open_array(array: NDArray[Any] | Tensor) -> Image.Image:
    if str(array.dtype).removeprefix("torch.") != "uint8":
        raise LmrError(f"Expected an array of uint8 values from 0 to 255, got one of {array.dtype}; convert it first.")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise LmrError(
            f"Expected an array ['h', 'w', 3] in RGB or ['h', 'w'] in grey, got {list(array.shape)}; move the channels "
            "to the end, and drop an alpha channel."
        )
    if 0 in array.shape:
        raise LmrError(f"Expected an image with pixels, got an array {list(array.shape)}.")
    pixels = array.cpu().numpy() if isinstance(array, Tensor) else array
    return Image.fromarray(np.ascontiguousarray(pixels))
