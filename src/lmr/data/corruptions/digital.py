"""Contrast, elastic transform, pixelation and JPEG compression."""

from __future__ import annotations

import functools
from io import BytesIO

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter1d, map_coordinates  # type: ignore[import-untyped]

from lmr.data.corruptions.noise import Floats, Generators, ImageBatch


def contrast(images: ImageBatch, generators: Generators, factor: float) -> Floats:
    """Move every value towards the mean of its channel in its image."""
    x = images / 255.0
    mean: Floats = np.stack([image.mean(axis=(0, 1), keepdims=True) for image in x])
    return (x - mean) * factor + mean


def elastic_transform(
    images: ImageBatch, generators: Generators, strength: float, sigma: float, shift: float
) -> Floats:
    """Move three points of the image at random, an affine map; then pull every pixel along a smooth random field."""
    pairs = zip(images, generators, strict=True)
    return np.stack([_stretch(image, generator, strength, sigma, shift) for image, generator in pairs])


def _stretch(
    image: npt.NDArray[np.uint8], generator: np.random.Generator, strength: float, sigma: float, shift: float
) -> npt.NDArray[np.float32]:
    height, width, channels = image.shape
    x = image.astype(np.float32) / np.float32(255)
    middle = np.array([height // 2, width // 2], np.float32)  # in the order of the authors, whose images are square
    third = min(height, width) // 3
    corners = middle + third * np.array([(1, 1), (1, -1), (-1, -1)], np.float32)
    moved = corners + generator.uniform(-shift, shift, (3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, moved)
    x = np.asarray(cv2.warpAffine(x, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101), np.float32)
    if strength == 0:
        return x
    down_matrix, right_matrix = make_smoothing(height, sigma), make_smoothing(width, sigma)
    right, down = (
        (down_matrix @ generator.uniform(-1, 1, (height, width)) @ right_matrix.T * strength).astype(np.float32)
        for _ in range(2)
    )
    places = np.stack([np.arange(height)[:, None] + down, np.arange(width) + right])
    planes = [map_coordinates(x[:, :, k], places, order=1, mode="reflect") for k in range(channels)]
    return np.stack(planes, axis=-1)


@functools.lru_cache(maxsize=16)
def make_smoothing(length: int, sigma: float) -> Floats:
    """Return a Gaussian along a line with mirrored ends, cut at 3 sigma, as a matrix [length, length].

    The fields of ImageNet-C are wider than the image: one product with a matrix is far cheaper than 1,000 taps.
    """
    matrix: Floats = gaussian_filter1d(np.eye(length), sigma, axis=0, mode="reflect", truncate=3.0)
    return matrix


def pixelate(images: ImageBatch, generators: Generators, factor: float) -> ImageBatch:
    """Shrink and enlarge with box filters."""
    height, width = images.shape[1:3]
    small = max(1, int(width * factor)), max(1, int(height * factor))
    box = Image.Resampling.BOX
    return np.stack([np.asarray(Image.fromarray(p).resize(small, box).resize((width, height), box)) for p in images])


def jpeg_compression(images: ImageBatch, generators: Generators, quality: float) -> ImageBatch:
    """Compress as JPEG with this quality and decompress."""
    return np.stack([_pass_through_jpeg(image, int(quality)) for image in images])


def _pass_through_jpeg(image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
