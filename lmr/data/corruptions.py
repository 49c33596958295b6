"""Common corruptions of small pictures: drift that can be made on demand, at five known strengths.

The kinds and the constants are those of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking Neural Network Robustness
to Common Corruptions and Perturbations", ICLR 2019), so that a number measured here can stand beside a published one.

Each corruption is a function (x, generators, *constants) -> x on float64 pictures x [N, H, H, 3] in [0, 1]; it may
leave that range. `corrupt` does the rest as the authors did: clip to [0, 1], multiply by 255, truncate to uint8. To add
a corruption, write its function and give it a line in the registry.
"""

from __future__ import annotations

import difflib
import math
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image

Pictures = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Generators = Iterable[np.random.Generator]

_GUARD = 1e-9  # grey levels: a flat area whose value is whole must not lose a level to the last bit of a float
_CHUNK = 64  # pictures at a time: the float64 copies stay near the processor's cache, whatever the batch


def add_gaussian_noise(x: Floats, generators: Generators, std: float) -> Floats:
    """Independent noise on every pixel and channel, as a sensor makes in low light."""
    return x + std * np.stack([generator.standard_normal(x.shape[1:]) for generator in generators])


def defocus(x: Floats, generators: Generators, radius: float, alias_blur: float) -> Floats:
    """Every point becomes a small disk, as behind a lens out of focus; borders are mirrored without the edge pixel."""
    kernel = make_disk(radius, alias_blur)
    side, reach = x.shape[1], len(kernel) // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    blurred = np.zeros_like(x)
    for (row, column), weight in np.ndenumerate(kernel):
        blurred += weight * padded[:, row : row + side, column : column + side]
    return blurred


def make_disk(radius: float, alias_blur: float) -> Floats:
    """A disk of sum 1 with its jagged edge softened by a 3x3 Gaussian of sigma `alias_blur` -> [K, K], K odd.

    The authors draw it on a 17x17 grid; here the grid ends where the softened disk does. Its outer ring is empty before
    the softening, hence a roll never carries anything around the edge.
    """
    reach = int(radius) + 1
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    disk /= disk.sum()
    neighbour = math.exp(-1 / (2 * alias_blur**2))
    for axis in (0, 1):
        disk = disk + neighbour * (np.roll(disk, 1, axis) + np.roll(disk, -1, axis))
    return disk / (1 + 2 * neighbour) ** 2


def add_fog(x: Floats, generators: Generators, strength: float, decay: float) -> Floats:
    """A cloud laid over the picture, then dimmed so that the brightest value possible stays the picture's own."""
    side = x.shape[1]
    size = 1 << max(1, (side - 1).bit_length())
    uniforms = np.stack([generator.uniform(-1, 1, size * size - 1) for generator in generators])
    cloud = grow_plasma(uniforms, size, decay)[:, :side, :side, None]
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


def lower_contrast(x: Floats, generators: Generators, factor: float) -> Floats:
    """Every value drawn towards the mean of its channel in its own picture."""
    mean: Floats = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * factor + mean


def pixelate(x: Floats, generators: Generators, factor: float) -> Floats:
    """Shrunk and enlarged with box filters, in 8 bits by Pillow as the authors did; k / 255 * 255 is exactly k."""
    side = x.shape[1]
    small = max(1, int(side * factor))
    whole = np.rint(x * 255).astype(np.uint8)
    pictures = (Image.fromarray(picture).resize((small, small), Image.Resampling.BOX) for picture in whole)
    return np.stack([np.asarray(picture.resize((side, side), Image.Resampling.BOX)) for picture in pictures]) / 255.0


_REGISTRY: dict[str, tuple[Callable[..., Floats], tuple[tuple[float, ...], ...]]] = {
    "gaussian_noise": (add_gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "defocus_blur": (defocus, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "fog": (add_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "contrast": (lower_contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "pixelate": (pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,))),
}

CORRUPTIONS: tuple[str, ...] = tuple(_REGISTRY)


def corrupt(images: Pictures, name: str, severity: int, seed: int = 0, first: int = 0) -> Pictures:
    """Corrupt uint8 pictures [N, H, H, 3] -> a new array of the same shape and type.

    `first` is the place of images[0] in its stream. The random numbers of a picture depend on (seed, name, place) only:
    a stream looks the same however it is cut into batches, and a picture meets the same noise at every severity.
    """
    _check(images, name, severity, seed, first)
    function, levels = _REGISTRY[name]
    corrupted = np.empty_like(images)
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK]
        generators = _make_generators(name, seed, first + start, len(part))
        x = function(part / 255.0, generators, *levels[severity - 1])
        corrupted[start : start + _CHUNK] = (np.clip(x, 0, 1) * 255 + _GUARD).astype(np.uint8)
    return corrupted


def _make_generators(name: str, seed: int, first: int, count: int) -> Iterator[np.random.Generator]:
    """One generator per picture, made only if the corruption asks; a checksum stands for the name in the entropy."""
    code = zlib.crc32(name.encode())
    return (np.random.default_rng([code, index, seed]) for index in range(first, first + count))


def _check(images: Pictures, name: str, severity: int, seed: int, first: int) -> None:
    if name not in CORRUPTIONS:
        near = difflib.get_close_matches(str(name), CORRUPTIONS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no corruption {name!r}.{hint} Choose one of: {', '.join(CORRUPTIONS)}.")
    if not isinstance(severity, (int, np.integer)) or not 1 <= severity <= 5:
        raise ValueError(f"The severity must be a whole number from 1 (mild) to 5 (strong), but {severity!r} came.")
    for label, value in (("seed", seed), ("index of the first picture", first)):
        if not isinstance(value, (int, np.integer)) or value < 0:
            raise ValueError(f"The {label} must be a whole number of at least 0, but {value!r} came.")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise ValueError(
            f"Expected a numpy array of uint8 values from 0 to 255, but {kind} came: corrupt the pictures "
            "before they are scaled, normalised or turned into tensors."
        )
    if images.ndim != 4 or images.shape[3] != 3 or images.shape[1] != images.shape[2] or images.shape[1] == 0:
        raise ValueError(
            f"Expected square colour pictures [N, H, H, 3], but the shape {list(images.shape)} came: crop "
            "the pictures to squares, put the channels last, and give a single picture as image[None]."
        )
