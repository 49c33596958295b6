"""Weather between the camera and the scene: snow, frost on the window, fog."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from lmr.data.corruptions.array_types import Floats, Generators, ImageBatch
from lmr.data.corruptions.frost_textures import load_textures
from lmr.data.corruptions.motion import smear
from lmr.data.corruptions.zoom import enlarge_middle


def add_snow(
    images: ImageBatch,
    generators: Generators,
    mean: float,
    std: float,
    size: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Floats:
    """Whiten the scene, keeping a share `keep` of its colours, and add flakes: noise, enlarged, thresholded, smeared.

    The same flakes are added twice, the second time rotated by 180 degrees, which makes them look denser.
    """
    height, width = images.shape[1:3]
    layers = np.stack([generator.normal(mean, std, (height, width)) for generator in generators], axis=-1)
    layers = enlarge_middle(layers, size).transpose(2, 0, 1)
    flakes = (np.clip(np.where(layers < threshold, 0, layers), 0, 1) * 255).astype(np.uint8)
    snowed = np.empty(images.shape)
    for k, generator in enumerate(generators):
        fallen = smear(flakes[k], radius, sigma, generator.uniform(-135, -45))[:, :, None] / 255.0
        snowed[k] = _whiten(images[k], keep) + fallen + np.rot90(fallen, k=2)
    return snowed


def _whiten(image: npt.NDArray[np.uint8], keep: float) -> npt.NDArray[np.float32]:
    x = image.astype(np.float32) / np.float32(255)
    grey = np.asarray(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), np.float32)[:, :, None]
    white = np.maximum(x, grey * np.float32(1.5) + np.float32(0.5))
    whitened: npt.NDArray[np.float32] = np.float32(keep) * x + np.float32(1 - keep) * white
    return whitened


def add_frost(images: ImageBatch, generators: Generators, keep: float, strength: float, scale: float) -> ImageBatch:
    """Blend the image with a random crop of one of five photographs of frost, resized by `scale`."""
    frosted = np.empty_like(images)
    for k, generator in enumerate(generators):
        textures = load_textures(scale)
        frost = _cut(textures[generator.integers(len(textures))], images.shape[1], images.shape[2], generator)
        frosted[k] = np.clip(keep * images[k] + strength * frost, 0, 255).astype(np.uint8)
    return frosted


def _cut(
    texture: npt.NDArray[np.uint8], height: int, width: int, generator: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """A random crop [height, width, 3]; a texture that is too small (never at the published sizes) is enlarged."""
    enough = max((height + 1) / texture.shape[0], (width + 1) / texture.shape[1])
    if enough > 1:
        size = (max(width + 1, round(texture.shape[1] * enough)), max(height + 1, round(texture.shape[0] * enough)))
        texture = np.asarray(cv2.resize(texture, size), np.uint8)
    top = generator.integers(texture.shape[0] - height)
    left = generator.integers(texture.shape[1] - width)
    return texture[top : top + height, left : left + width]


def add_fog(images: ImageBatch, generators: Generators, strength: float, decay: float) -> Floats:
    """Add a cloud, then dim the sum so that its largest possible value is that of the image."""
    height, width = images.shape[1:3]
    x = images / 255.0
    size = 1 << max(1, (max(height, width) - 1).bit_length())
    uniforms = np.stack([generator.uniform(-1, 1, size * size - 1) for generator in generators])
    cloud = grow_plasma(uniforms, size, decay)[:, :height, :width, None]
    brightest: Floats = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + strength * cloud) * brightest / (brightest + strength)


def grow_plasma(uniforms: Floats, size: int, decay: float) -> Floats:
    """Plasma fractals by the diamond-square algorithm on a torus, each scaled to [0, 1] -> [N, size, size].

    `size` is a power of two; `uniforms` [N, size^2 - 1] in [-1, 1] holds one number for each point but the corner, in
    the order of growth: at each halving of the step the centres of the squares, then the middles of their upper edges,
    then of their left edges. A new point is the mean of its four neighbours plus wibble * uniform(-wibble, wibble): the
    wibble enters squared, as in the authors' code.
    """
    field = np.zeros((len(uniforms), size, size))
    step, wibble, used = size, 100.0, 0
    while step >= 2:
        half, count = step // 2, size // step
        shocks = uniforms[:, used : used + 3 * count**2].reshape(-1, 3, count, count) * wibble**2
        corners = field[:, ::step, ::step]
        rows = corners + np.roll(corners, -1, axis=2)
        columns = corners + np.roll(corners, -1, axis=1)
        centres = (rows + np.roll(rows, -1, axis=1)) / 4 + shocks[:, 0]
        field[:, half::step, half::step] = centres
        field[:, ::step, half::step] = (rows + centres + np.roll(centres, 1, axis=1)) / 4 + shocks[:, 1]
        field[:, half::step, ::step] = (columns + centres + np.roll(centres, 1, axis=2)) / 4 + shocks[:, 2]
        step, wibble, used = half, wibble / decay, used + 3 * count**2
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field
