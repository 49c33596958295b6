"""The corruptions written slowly, pixel by pixel, from their definitions; shares no code with the library.

Random ones take their numbers one by one: which numbers a corruption asks its generator for, and in which order, is
part of what must stay the same, or a stream made today would be another one tomorrow.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable

import numpy as np
from scipy import ndimage

Generator = np.random.Generator


def store(value: float) -> int:
    return int(min(max(value, 0.0), 1.0) * 255)


def store_all(values: np.ndarray) -> np.ndarray:
    return np.vectorize(store, otypes=[np.uint8])(values)


def mirror(position: int, side: int) -> int:
    """The border without its edge pixel: ... 2 1 | 0 1 2 ... side-1 | side-2 ..."""
    while not 0 <= position < side:
        position = -position if position < 0 else 2 * (side - 1) - position
    return position


def clamp(position: int, side: int) -> int:
    return min(max(position, 0), side - 1)


def gather(x: np.ndarray, taps: list[tuple[int, int, float]], border: Callable[[int, int], int]) -> np.ndarray:
    """Replace every pixel by the weighted sum of the pixels (down, right) of it."""
    result = np.zeros_like(x, dtype=float)
    for down, right, weight in taps:
        rows, columns = ([border(place + step, len(x)) for place in range(len(x))] for step in (down, right))
        result += weight * x[np.ix_(rows, columns)]
    return result


def refer_noise(image: np.ndarray, rng: Generator, std: float) -> np.ndarray:
    draws = [rng.normal(0, std) for _ in range(image.size)]
    return store_all(image / 255 + np.reshape(draws, image.shape))


def refer_speckle(image: np.ndarray, rng: Generator, std: float) -> np.ndarray:
    draws = [rng.normal(0, std) for _ in range(image.size)]
    return store_all(image / 255 * (1 + np.reshape(draws, image.shape)))


def refer_shot(image: np.ndarray, rng: Generator, photons: float) -> np.ndarray:
    counts = [rng.poisson(int(value) / 255 * photons) for value in image.ravel()]
    return store_all(np.reshape(counts, image.shape) / photons)


def refer_impulse(image: np.ndarray, rng: Generator, share: float) -> np.ndarray:
    result = image.copy()
    for place in np.ndindex(image.shape):
        draw = rng.random()
        if draw < share:
            result[place] = 255 if draw < share / 2 else 0
    return result


def list_gauss_taps(sigma: float, truncate: float = 4.0) -> list[tuple[int, int, float]]:
    reach = int(truncate * sigma + 0.5)
    line = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in range(-reach, reach + 1)}
    total = sum(line.values()) ** 2
    return [(r, c, line[r] * line[c] / total) for r in line for c in line]


def refer_gaussian_blur(image: np.ndarray, rng: Generator, sigma: float) -> np.ndarray:
    return store_all(gather(image / 255, list_gauss_taps(sigma), clamp))


def refer_glass(image: np.ndarray, rng: Generator, sigma: float, reach: int, rounds: int) -> np.ndarray:
    """Copies one by one, from the lower right; the second pixel of the supposed exchange keeps its value."""
    x = store_all(gather(image / 255, list_gauss_taps(sigma), clamp))
    side = len(x)
    walk = range(side - reach, reach, -1)
    moves = rng.integers(-reach, reach, (rounds, 2, len(walk) ** 2))
    for down, right in moves:
        steps = iter(zip(down, right, strict=True))
        for row in walk:
            for column in walk:
                dy, dx = next(steps)
                x[row, column] = x[row + dy, column + dx].copy()
    return store_all(gather(x / 255, list_gauss_taps(sigma), clamp))


def refer_disk(radius: float, sigma: float) -> np.ndarray:
    """The disk on the authors' grid, then a Gaussian of 3x3 or 5x5 taps over it."""
    reach, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    side = 2 * reach + 1
    disk = np.array(
        [[float((r - reach) ** 2 + (c - reach) ** 2 <= radius**2) for c in range(side)] for r in range(side)]
    )
    taps = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in range(-soft, soft + 1)}
    total = sum(taps.values()) ** 2
    return gather(disk / disk.sum(), [(r, c, taps[r] * taps[c] / total) for r in taps for c in taps], mirror)


def refer_defocus(image: np.ndarray, rng: Generator, radius: float, sigma: float) -> np.ndarray:
    kernel = refer_disk(radius, sigma)
    reach = len(kernel) // 2
    taps = [(r - reach, c - reach, weight) for (r, c), weight in np.ndenumerate(kernel) if weight > 0]
    return store_all(gather(image / 255, taps, mirror))


def smear_slowly(x: np.ndarray, radius: float, sigma: float, degrees: float) -> np.ndarray:
    """ImageMagick's motion blur: half a Gaussian along a ray, in 16 bits, truncated to 8."""
    count = 2 * math.ceil(radius) + 1
    weights = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(count)]
    down, right = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    taps = [(math.ceil(k * down - 0.5), math.ceil(k * right - 0.5), w / sum(weights)) for k, w in enumerate(weights)]
    wide = np.floor(gather(x * 257.0, taps, clamp) + 0.5)
    return (wide // 257).astype(np.uint8)


def refer_motion(image: np.ndarray, rng: Generator, radius: float, sigma: float) -> np.ndarray:
    return smear_slowly(image, radius, sigma, rng.uniform(-45, 45))


def zoom_slowly(x: np.ndarray, factor: float) -> np.ndarray:
    side = len(x)
    crop = math.ceil(side / factor)
    first = (side - crop) // 2
    middle = x[first : first + crop, first : first + crop]
    large = ndimage.zoom(middle, (factor, factor, 1), order=1)
    extra = (len(large) - side) // 2
    return large[extra : extra + side, extra : extra + side]


def refer_zoom(image: np.ndarray, rng: Generator, stop: float, step: float) -> np.ndarray:
    x = image / 255
    factors = np.arange(1, stop, step)
    return store_all((x + sum(zoom_slowly(x, factor) for factor in factors)) / (len(factors) + 1))


def refer_plasma(size: int, decay: float, rng: Generator) -> np.ndarray:
    """Diamond-square, one point at a time, each drawing its own random number when it is made."""
    field = np.full((size, size), np.nan)
    field[0, 0] = 0
    wibble, step = 100.0, size

    def settle(row: int, column: int, neighbours: list[tuple[int, int]]) -> None:
        total = sum(field[r % size, c % size] for r, c in neighbours)
        field[row, column] = total / 4 + wibble * rng.uniform(-wibble, wibble)

    while step >= 2:
        half = step // 2
        corners = [(r, c) for r in range(0, size, step) for c in range(0, size, step)]
        for r, c in corners:
            settle(r + half, c + half, [(r, c), (r + step, c), (r, c + step), (r + step, c + step)])
        for r, c in corners:
            settle(r, c + half, [(r, c), (r, c + step), (r - half, c + half), (r + half, c + half)])
        for r, c in corners:
            settle(r + half, c, [(r, c), (r + step, c), (r + half, c - half), (r + half, c + half)])
        step, wibble = half, wibble / decay
    field -= field.min()
    return field / field.max()


def refer_fog(image: np.ndarray, rng: Generator, strength: float, decay: float) -> np.ndarray:
    size = next(2**k for k in range(12) if 2**k >= len(image))
    cloud = refer_plasma(size, decay, rng)[: len(image), : len(image), None]
    brightest = float(image.max()) / 255
    return store_all((image / 255 + strength * cloud) * brightest / (brightest + strength))


def refer_snow(image: np.ndarray, rng: Generator, *constants: float) -> np.ndarray:
    mean, std, size, threshold, radius, sigma, keep = constants
    layer = zoom_slowly(rng.normal(mean, std, image.shape[:2])[..., None], size)[..., 0]
    flakes = store_all(np.where(layer < threshold, 0, layer))
    fallen = smear_slowly(flakes, radius, sigma, rng.uniform(-135, -45))[..., None] / 255
    x = image / 255
    grey = (x @ [0.299, 0.587, 0.114])[..., None]
    return store_all(keep * x + (1 - keep) * np.maximum(x, 1.5 * grey + 0.5) + fallen + fallen[::-1, ::-1])


def change_colours(image: np.ndarray, change: Callable[[float, float], tuple[float, float]]) -> np.ndarray:
    result = np.zeros(image.shape)
    for row, column in np.ndindex(image.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(image[row, column] / 255))
        result[row, column] = colorsys.hsv_to_rgb(hue, *np.clip(change(saturation, value), 0, 1))
    return store_all(result)


def refer_brightness(image: np.ndarray, rng: Generator, amount: float) -> np.ndarray:
    return change_colours(image, lambda saturation, value: (saturation, value + amount))


def refer_saturate(image: np.ndarray, rng: Generator, factor: float, amount: float) -> np.ndarray:
    return change_colours(image, lambda saturation, value: (saturation * factor + amount, value))


def refer_contrast(image: np.ndarray, rng: Generator, factor: float) -> np.ndarray:
    x = image / 255
    mean = np.array([math.fsum(x[:, :, channel].ravel()) for channel in range(3)]) / x[:, :, 0].size
    return store_all((x - mean) * factor + mean)


def resize_line(line: list[int], length: int) -> list[int]:
    """A box filter: the rounded mean of the pixels whose centres lie in the window, which is never below one pixel."""
    scale = len(line) / length
    width = max(scale, 1.0)
    result = []
    for k in range(length):
        centre = (k + 0.5) * scale
        inside = [value for place, value in enumerate(line) if -0.5 < (place + 0.5 - centre) / width <= 0.5]
        result.append(int(sum(inside) / len(inside) + 0.5))
    return result


def resize_plane(plane: np.ndarray, side: int) -> np.ndarray:
    rows = np.array([resize_line([int(v) for v in row], side) for row in plane])
    return np.array([resize_line([int(v) for v in column], side) for column in rows.T]).T


def refer_pixelate(image: np.ndarray, rng: Generator, factor: float) -> np.ndarray:
    side = len(image)
    planes = [resize_plane(resize_plane(image[:, :, k], int(side * factor)), side) for k in range(3)]
    return np.stack(planes, axis=-1).astype(np.uint8)


REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "gaussian_noise": refer_noise,
    "shot_noise": refer_shot,
    "impulse_noise": refer_impulse,
    "speckle_noise": refer_speckle,
    "gaussian_blur": refer_gaussian_blur,
    "glass_blur": refer_glass,
    "defocus_blur": refer_defocus,
    "motion_blur": refer_motion,
    "zoom_blur": refer_zoom,
    "fog": refer_fog,
    "snow": refer_snow,
    "brightness": refer_brightness,
    "saturate": refer_saturate,
    "contrast": refer_contrast,
    "pixelate": refer_pixelate,
}
